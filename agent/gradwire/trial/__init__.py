"""`gradwire trial`: a script twice from one start, uncompressed and then compressed, and what came of it."""
