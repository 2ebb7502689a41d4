"""Intervals of ratios of sums, from blocks of steps.

Step times are correlated from one step to the next, so single steps would promise too much. Blocks of consecutive
steps are nearly independent (the method of batch means); the ratio's error comes from leaving out one block at a
time (the jackknife), and Student's t allows for the small number of blocks. All intervals are two-sided, 95 %.
"""

import math
from collections.abc import Sequence

from msgspec import Struct

# Fewer blocks make the estimate of the error itself unreliable.
MIN_BLOCKS = 8
# More blocks would be shorter than the correlation of step times.
MAX_BLOCKS = 20

# Student's t at 97.5 % for 1 to 10 degrees of freedom; the expansion below is right to 0.01 % from 11 on.
_T_TABLE = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z = 1.959964


class Estimate(Struct, frozen=True):
    """A value with the standard error of `num_blocks` blocks and its interval."""

    value: float
    error: float
    num_blocks: int

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % interval."""
        return student_t(self.num_blocks - 1) * self.error

    @property
    def low(self) -> float:
        """Lower end of the 95 % interval."""
        return self.value - self.half_width

    @property
    def high(self) -> float:
        """Upper end of the 95 % interval."""
        return self.value + self.half_width


def student_t(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's t.

    Args:
        degrees: Degrees of freedom, 1 or more.

    Source: Abramowitz and Stegun, equation 26.7.5.
    """
    if degrees <= len(_T_TABLE):
        return _T_TABLE[degrees - 1]
    z = _Z
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate | None:
    """Estimate the ratio of two sums over blocks.

    Args:
        numerators: One sum for each block.
        denominators: One positive sum for each block, as many.

    Returns:
        The ratio of the totals with its jackknife error, or None with fewer than two blocks or nothing below.
    """
    num_blocks = len(numerators)
    top, bottom = math.fsum(numerators), math.fsum(denominators)
    if num_blocks < 2 or min(denominators) <= 0:
        return None
    value = top / bottom
    # The deviation of the ratio without one block, written so that nothing cancels.
    deviations = [
        (value * below - above) / (bottom - below) for above, below in zip(numerators, denominators, strict=True)
    ]
    mean = math.fsum(deviations) / num_blocks
    squares = math.fsum((deviation - mean) ** 2 for deviation in deviations)
    return Estimate(value, math.sqrt((num_blocks - 1) / num_blocks * squares), num_blocks)


def mean(values: Sequence[float]) -> Estimate | None:
    """Estimate a mean; None with fewer than two values."""
    return ratio(values, [1.0] * len(values))


def quotient(above: Estimate, below: Estimate) -> Estimate:
    """Return `above / below` of two independent positive estimates.

    The relative errors add in squares; the degrees of freedom are those of the smaller number of blocks, which is
    never too few.
    """
    value = above.value / below.value
    relative = math.hypot(above.error / above.value, below.error / below.value)
    return Estimate(value, value * relative, min(above.num_blocks, below.num_blocks))
