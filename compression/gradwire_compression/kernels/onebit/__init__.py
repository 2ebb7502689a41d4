"""One sign bit an element."""
