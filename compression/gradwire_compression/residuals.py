"""Residuals: what error feedback owes to each parameter, by name."""

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from gradwire_compression.buckets import Slot
from gradwire_compression.kernels.blocks import rows
from gradwire_compression.layout import Layout


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


def restore(residual: Tensor, layout: Layout, decoded: Tensor, buffer: Tensor) -> None:
    """Undo an encode whose result is thrown away: old = new + decoded own payload - x, right to rounding.

    Blocks that were not finite kept their residual when they were encoded and are left alone.

    Args:
        residual: [layout.numel] float32, compact; updated in place.
        layout: The blocks in `buffer`.
        decoded: [layout.numel] float32, compact: this rank's own payload.
        buffer: The gradients that were encoded.
    """
    compact = layout.compact()
    x, _, mask = rows(buffer, layout)
    sent, places, _ = rows(decoded, compact)
    new, _, _ = rows(residual, compact)
    is_sent = sent.isfinite().all(dim=1, keepdim=True)
    old = torch.where(is_sent, new + (sent - x), new)
    residual[places[mask]] = old[mask]
