"""What codecs share whose scale is the largest magnitude of the block."""
