"""Runs as people see them."""
