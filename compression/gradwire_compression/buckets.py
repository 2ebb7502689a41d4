"""Buckets: flat tensors that hold the gradients of several parameters one after the other."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one parameter's gradient in a flat tensor, in elements."""

    name: str
    offset: int
    numel: int

    def of(self, flat: Tensor) -> Tensor:
        """Return this slot's part of `flat`, a view of [numel]."""
        return flat[self.offset : self.offset + self.numel]


@dataclass(frozen=True)
class BucketShape:
    """What identifies a bucket: its place in the order, its dtype and its parameters."""

    index: int
    dtype: torch.dtype
    slots: tuple[Slot, ...]

    @property
    def numel(self) -> int:
        """Elements of the flat tensor."""
        return sum(slot.numel for slot in self.slots)

    def describe(self) -> list[object]:
        """Return a JSON-able value that is equal for equal shapes in every process."""
        return [self.index, str(self.dtype), [[slot.name, slot.numel] for slot in self.slots]]


@dataclass(slots=True)
class BucketView:
    """A bucket that is ready to be averaged, in the exchange's own terms."""

    index: int
    is_last: bool
    # [numel], or whatever layout the framework uses for gradients that are not dense.
    buffer: Tensor
    parameters: Sequence[Tensor]
    # Which parameters' gradients already lay in the buffer before backward, None if that makes no difference.
    kept: Sequence[bool] | None = None


def pack(entries: Iterable[tuple[str, int]]) -> tuple[Slot, ...]:
    """Return slots for (name, numel) laid one after the other from offset 0."""
    slots, offset = [], 0
    for name, numel in entries:
        slots.append(Slot(name, offset, numel))
        offset += numel
    return tuple(slots)
