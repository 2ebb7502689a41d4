"""Attaching from inside training frameworks: one module each, which imports its framework and no other."""
