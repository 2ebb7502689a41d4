"""Collectives that average a bucket over the ranks of a group."""
