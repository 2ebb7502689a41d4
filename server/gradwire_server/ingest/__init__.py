"""Batches in, once each."""
