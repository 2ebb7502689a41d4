"""Buckets: flat tensors that hold the gradients of several parameters one after the other."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire_compression.hashing import hash_json

# The name of a parameter that the exchange was not given; it is always averaged exactly.
UNKNOWN = "?"


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


class BucketView:
    """A bucket that is ready to be averaged, in the exchange's own terms."""

    __slots__ = ("_parameters", "buffer", "index", "is_last", "kept")

    def __init__(
        self,
        index: int,
        is_last: bool,
        buffer: Tensor,
        parameters: Sequence[Tensor] | Callable[[], Sequence[Tensor]],
        kept: Sequence[bool] | None = None,
    ) -> None:
        """Describe a bucket.

        Args:
            index: Its place in the step's order.
            is_last: Whether it ends the step.
            buffer: [numel], or whatever layout the framework uses for gradients that are not dense.
            parameters: Whose gradients it holds, or who tells, since to ask the framework takes its time.
            kept: Which gradients lay in the buffer before backward already, None if that is all one.
        """
        self.index, self.is_last, self.buffer, self.kept = index, is_last, buffer, kept
        self._parameters = parameters

    @property
    def parameters(self) -> Sequence[Tensor]:
        """Whose gradients the buffer holds, in its order."""
        if callable(self._parameters):
            self._parameters = self._parameters()
        return self._parameters


class BucketBook:
    """Keeps the shape of every bucket, and notices when the framework deals its parameters out anew."""

    def __init__(self, names: Mapping[int, str]) -> None:
        """`names` gives each parameter's name by its `id`."""
        self._names = names
        self._shapes: dict[int, BucketShape] = {}
        self._keys: dict[int, tuple[int, ...]] = {}
        self._is_new = True
        # A number below 2**48 for the buckets of the last complete step, 0 before the first.
        self.hash = 0
        # Buckets of the last complete step, 0 before the first.
        self.num_buckets = 0

    @property
    def shapes(self) -> list[BucketShape]:
        """The buckets seen, in order."""
        return [self._shapes[index] for index in sorted(self._shapes)]

    def shape_of(self, view: BucketView) -> BucketShape:
        """Return the bucket's shape, the same object as long as the bucket stays what it is."""
        key = (view.buffer.numel(), *map(id, view.parameters))
        if self._keys.get(view.index) != key:
            names = [self._names.get(id(parameter), UNKNOWN) for parameter in view.parameters]
            slots = pack(zip(names, (parameter.numel() for parameter in view.parameters), strict=True))
            self._shapes[view.index] = BucketShape(view.index, view.buffer.dtype, slots)
            self._keys[view.index] = key
            self._is_new = True
        return self._shapes[view.index]

    def end_step(self, num_buckets: int) -> None:
        """Note that a step is complete and had that many buckets."""
        if self._is_new or num_buckets != self.num_buckets:
            for index in [index for index in self._shapes if index >= num_buckets]:
                del self._shapes[index], self._keys[index]
            self.hash = hash_json([shape.describe() for shape in self.shapes])
            self._is_new, self.num_buckets = False, num_buckets


def pack(entries: Iterable[tuple[str, int]]) -> tuple[Slot, ...]:
    """Return slots for (name, numel) laid one after the other from offset 0."""
    slots, offset = [], 0
    for name, numel in entries:
        slots.append(Slot(name, offset, numel))
        offset += numel
    return tuple(slots)


def one_for_each_dtype(parameters: Mapping[str, Tensor]) -> list[BucketShape]:
    """Return the buckets to reckon with while the framework's are not known."""
    by_dtype: dict[torch.dtype, list[tuple[str, int]]] = {}
    for name, parameter in parameters.items():
        by_dtype.setdefault(parameter.dtype, []).append((name, parameter.numel()))
    return [BucketShape(index, dtype, pack(entries)) for index, (dtype, entries) in enumerate(by_dtype.items())]
