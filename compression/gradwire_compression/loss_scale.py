"""The loss scale: the unit in which gradients, and so residuals, are measured."""

import math
from collections.abc import Callable


class LossScale:
    """Remembers in which unit residuals are, and says by how much they have to be multiplied when it changes.

    A GradScaler multiplies the loss by a number that changes between steps; what an earlier step left over was
    measured in the unit of that step.
    """

    def __init__(self, read: Callable[[], float] | None) -> None:
        """`read` returns the present scale, equal on all ranks; None if the loss is not scaled."""
        self._read = read or (lambda: 1.0)
        self.value = 1.0

    def follow(self) -> float:
        """Return new over old scale; 1 if it stayed what it was, or is no number to go by."""
        new, old = self._read(), self.value
        if new == old or not (math.isfinite(new) and new > 0):
            return 1.0
        self.value = new
        return new / old
