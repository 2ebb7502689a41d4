"""One eight-bit float an element."""
