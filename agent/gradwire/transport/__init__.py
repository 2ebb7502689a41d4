"""Everything between a rank's record and the server's storage of it."""
