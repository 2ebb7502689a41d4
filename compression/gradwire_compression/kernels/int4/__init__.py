"""Half a byte an element."""
