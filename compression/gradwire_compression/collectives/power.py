"""The power of two that keeps a bucket's float16 sums within range, agreed without an exchange of its own."""

from collections.abc import Sequence

import torch
from torch import Tensor

# The largest magnitude is brought below 2**13, an eighth of what float16 holds.
_TARGET = 13
# Factors made of these powers are normal float32 numbers.
_LOWEST, _HIGHEST = -115, 100
# Codes are positive integers that float16 holds exactly, for exponents of every float32.
_BIAS = 200
# Stands for an exponent that is not known yet.
_UNKNOWN = -1000

# [1] int32 by the parameters of a bucket, in order.
Powers = dict[tuple[str, ...], Tensor]


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

    def __init__(self, held: Powers, names: Sequence[str], device: torch.device) -> None:
        """Go on from the exponent that `held` has for the bucket, and keep it there.

        Args:
            held: Exponents by the parameters of their buckets. What was agreed on for another bucket says
                nothing of this one; in an exchange of two levels each rank of a node has a shard of its own.
            names: The parameters of the bucket.
            device: Where it is exchanged; nothing here waits for it.
        """
        self._known = torch.full((1,), _UNKNOWN, dtype=torch.int32, device=device)
        if (known := held.get(tuple(names))) is not None:
            self._known.copy_(known)
        # [1] int32: what the next exchange multiplies by, as a power of two.
        self.exponent = _or_zero(self._known)
        held[tuple(names)] = self._known

    def write(self, slots: Tensor, rank: int, largest: Tensor) -> None:
        """Fill this rank's [W] slots; `largest` is [1] float32, 0 if nothing is known."""
        slots.zero_()
        _, exponent = torch.frexp(largest)
        slots[rank : rank + 1].copy_(torch.where(largest > 0, exponent + _BIAS, 0))

    def read(self, slots: Tensor) -> None:
        """Take the next exponent from the summed [W] slots."""
        code = slots.max().to(torch.int32)
        wanted = (_TARGET + _BIAS - code).clamp(_LOWEST, _HIGHEST)
        taken = torch.where(self._known == _UNKNOWN, wanted, torch.minimum(wanted, self._known + 1))
        self._known.copy_(torch.where(code == 0, self._known, taken))
        self.exponent.copy_(_or_zero(self._known))


def known_powers(held: Powers) -> list[tuple[list[str], int]]:
    """Return (parameters, exponent) of the buckets whose exponent is known; waits for the device."""
    return [(list(names), int(power)) for names, power in held.items() if int(power) != _UNKNOWN]


def _or_zero(known: Tensor) -> Tensor:
    return torch.where(known == _UNKNOWN, 0, known)
