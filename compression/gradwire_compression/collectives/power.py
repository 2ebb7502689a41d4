"""The power of two that keeps a bucket's float16 sums within range, agreed without an exchange of its own."""

import math
from collections.abc import Sequence

from torch import Tensor

# The largest magnitude is brought below 2**13, an eighth of what float16 holds.
_TARGET = 13
# Factors made of these powers are normal float32 numbers.
_LOWEST, _HIGHEST = -115, 100
# Codes are positive integers that float16 holds exactly, for exponents of every float32.
_BIAS = 200


class AgreedPower:
    """The exponent by which one bucket's elements are multiplied, equal on all ranks.

    Every exchange carries one more element for each rank: the rank's own one says how large its largest magnitude
    was, the others are zero. Their sum is exact and the same bits everywhere, so every rank knows the largest
    magnitude of all ranks and takes the same exponent for the next exchange. Averages would not do: gradients that
    cancel are small in the mean and large on the wire. No partial sum can exceed that magnitude, as every rank
    divides by W first.

    The exponent is 0 until something is known. It falls at once when gradients grow, and rises by one an exchange
    when they shrink, so that a single small gradient does not make the next normal one overflow. A gradient that
    grows more than eightfold from one exchange to the next may overflow: the result is then not finite on any rank,
    and the exchange after it knows the new magnitude.
    """

    def __init__(self, held: dict[str, int], names: Sequence[str]) -> None:
        """Go on from the exponents in `held`, equal on all ranks, and keep them there.

        Args:
            held: By parameter name; where the parameters of the bucket come from several, the smallest is safe.
            names: The parameters of the bucket.
        """
        self._held, self._names = held, names
        known = [held[name] for name in names if name in held]
        self.exponent = min(known, default=0)
        self._is_known = bool(known)

    def write(self, slots: Tensor, rank: int, largest: Tensor) -> None:
        """Fill this rank's [W] slots; `largest` is [1] float32, 0 if nothing is known."""
        slots.zero_()
        magnitude = float(largest)
        if magnitude > 0:
            slots[rank] = math.frexp(magnitude)[1] + _BIAS

    def read(self, slots: Tensor) -> None:
        """Take the next exponent from the summed [W] slots."""
        code = int(slots.max())
        if code == 0:
            return
        wanted = min(max(_TARGET - (code - _BIAS), _LOWEST), _HIGHEST)
        self.exponent = min(wanted, self.exponent + 1) if self._is_known else wanted
        self._is_known = True
        self._held.update(dict.fromkeys(self._names, self.exponent))
