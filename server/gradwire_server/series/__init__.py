"""Series of a run: windows of steps with their rollups, and user points."""
