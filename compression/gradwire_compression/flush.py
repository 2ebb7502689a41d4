"""The flush: residuals of tensors that are averaged exactly again go into their gradients, a share a step."""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gradwire_compression import residuals
from gradwire_compression.buckets import Slot
from gradwire_compression.finite import finite_flag


class Flush:
    """Adds each rank's residual to its gradients over as many steps as keep a share below one gradient norm.

    The first step measures the averaged gradient. A share counts only where the averaged result is finite;
    otherwise it stays owed. All decisions follow from numbers that are equal on all ranks.

    Args:
        owed: Residuals by parameter name, float32, in gradient units; owned and emptied by the flush.
        agree: Turns this rank's norm into the mean over ranks; called once, in the hook of bucket 0.
    """

    def __init__(self, owed: dict[str, Tensor], agree: Callable[[float], float]) -> None:
        self.owed = owed
        self.norm = residuals.norm(owed.values())
        self.num_steps = 0
        self.is_done = False
        self._agree = agree
        self._agreed_norm: float | None = None
        # Steps left, this one included; None while the gradient is being measured.
        self._num_left: int | None = None
        # Written by the threads that finish buckets; appending needs no lock. They stay where the buckets are, and
        # are read when the next step begins.
        self._norms: list[Tensor] = []
        self._are_finite: list[Tensor] = []

    def begin_step(self) -> None:
        """Decide what this step adds; every bucket of the step before is averaged."""
        if self._agreed_norm is None:
            self._agreed_norm = self._agree(self.norm)
            self.is_done = self._agreed_norm == 0
        elif self._num_left is None:
            self._num_left = self._steps_for(residuals.norm(self._norms), self._agreed_norm)
        elif self._num_left > 1:
            self._num_left -= 1
        else:
            self.is_done = all(self._are_finite)
        self._norms.clear()
        self._are_finite.clear()
        self.num_steps += not self.is_done

    def rescale(self, factor: float) -> None:
        """Multiply what is owed, in the hook of bucket 0."""
        for residual in self.owed.values():
            residual.mul_(factor)
        self.norm *= factor
        if self._agreed_norm is not None:
            self._agreed_norm *= factor

    def touches(self, slots: Iterable[Slot]) -> bool:
        """Return whether something is owed to one of these parameters."""
        return any(slot.name in self.owed for slot in slots)

    def add(self, flat: Tensor, slots: Sequence[Slot]) -> None:
        """Add this step's share to the gradients in `flat`, float32."""
        if self._num_left is not None:
            for slot in slots:
                if slot.name in self.owed:
                    slot.of(flat).add_(self.owed[slot.name], alpha=1 / self._num_left)

    def settle(self, flat: Tensor, slots: Sequence[Slot]) -> None:
        """Take off what was added, `flat` being the averaged result; on any thread."""
        owed = [(slot.of(flat), self.owed[slot.name]) for slot in slots if slot.name in self.owed]
        if self._num_left is None:
            self._norms += [torch.linalg.vector_norm(part, dtype=torch.float64) for part, _ in owed]
            return
        are_finite = torch.stack([finite_flag(part) for part, _ in owed]).all()
        kept = torch.where(are_finite, 1 - 1 / self._num_left, 1.0)
        for _, residual in owed:
            residual.mul_(kept)
        self._are_finite.append(are_finite)

    @staticmethod
    def _steps_for(gradient_norm: float, residual_norm: float) -> int | None:
        """Return the number of shares; None if the measured gradient says nothing, so that it is measured again."""
        if not math.isfinite(gradient_norm) or gradient_norm == 0:
            return None
        return max(1, math.ceil(residual_norm / gradient_norm))
