"""A cast for a native all-reduce."""
