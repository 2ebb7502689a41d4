"""Medians and their spread."""

from collections.abc import Sequence
from statistics import median, quantiles


def middle(values: Sequence[float]) -> float:
    """Return the median."""
    return median(values)


def half_spread(values: Sequence[float]) -> float:
    """Return half the distance between the quartiles, 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, _, high = quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def quotients(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [one / other for one, other in zip(numerators, denominators, strict=True)]
