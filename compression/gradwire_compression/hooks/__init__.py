"""Hooks that hand the buckets of a framework to an exchange."""
