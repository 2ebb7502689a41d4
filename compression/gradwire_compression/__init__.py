"""Codecs, kernels, error feedback, collectives and plans."""
