"""News of runs, to browsers and to waiting agents."""
