"""One file per revision, each spelling out its DDL."""
