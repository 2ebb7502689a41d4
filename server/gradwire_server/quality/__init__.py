"""Quality against a chosen baseline run."""
