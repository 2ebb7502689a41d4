"""Residuals: what error feedback owes to each parameter, by name."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gradwire_compression.buckets import Slot, pack


def norm(tensors: Iterable[Tensor]) -> float:
    """Return the L2 norm of all tensors together, summed in float64."""
    squares = [float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2 for tensor in tensors]
    return math.sqrt(sum(squares))


def split(vector: Tensor, slots: Sequence[Slot]) -> dict[str, Tensor]:
    """Return views of a compact vector by parameter name; `slots` are its tensors in compact order."""
    parts = vector.split([slot.numel for slot in slots])
    return {slot.name: part for slot, part in zip(slots, parts, strict=True)}


def load(vector: Tensor, slots: Sequence[Slot], held: Mapping[str, Tensor]) -> None:
    """Copy into a compact vector what is held for its parameters; the others start at zero."""
    for name, part in split(vector, slots).items():
        if name in held:
            part.copy_(held[name])
        else:
            part.zero_()


def cut(slots: Sequence[Slot], parts: Iterable[tuple[int, Tensor]]) -> Iterator[tuple[str, int, Tensor]]:
    """Yield (parameter name, offset in its gradient, view) of ranges of a compact vector, cut between parameters.

    Args:
        slots: The tensors of the vector in compact order.
        parts: (place in the vector, values), each a range of it.
    """
    packed = pack((slot.name, slot.numel) for slot in slots)
    for start, values in parts:
        end = start + values.numel()
        for slot in packed:
            first, last = max(start, slot.offset), min(end, slot.offset + slot.numel)
            if first < last:
                yield slot.name, first - slot.offset, values[first - start : last - start]


def gather_owners(
    pieces: Mapping[str, Sequence[tuple[int, Tensor]]],
    names: Iterable[str],
    parameters: Mapping[str, Tensor],
    total: Callable[[Tensor], object],
) -> dict[str, Tensor]:
    """Return [numel] float32 for each of the names, put together from what all ranks hold as owners.

    Args:
        pieces: (offset, values) by parameter name: this rank's; no element is held by two ranks.
        names: Equal on all ranks.
        parameters: By name.
        total: A blocking sum over ranks in place.

    Cost: one all-reduce of 4 bytes for each element.
    """
    gathered = {}
    for name in names:
        whole = torch.zeros(parameters[name].numel(), device=parameters[name].device)
        for offset, values in pieces.get(name, ()):
            whole[offset : offset + values.numel()] = values.to(whole.device)
        # As integers nothing is rounded, and the sign of a zero is kept.
        total(whole.view(torch.int32))
        gathered[name] = whole
    return gathered
