"""`gradwire doctor`: what this machine needs for a run that is measured, compressed and steered."""
