"""Figures, made once here and drawn by the page."""
