"""One signed byte an element."""
