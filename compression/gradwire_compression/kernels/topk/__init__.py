"""The largest elements of each block."""
