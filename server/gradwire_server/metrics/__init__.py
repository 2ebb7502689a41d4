"""Prometheus: counters in memory and their exposition."""
