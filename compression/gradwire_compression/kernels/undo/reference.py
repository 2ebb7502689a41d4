"""Taking back an encode whose result is thrown away, on CPU: there the flag that asks for it is known."""

from typing import Protocol

import torch
from torch import Tensor

from gradwire_compression.kernels.rows import rows
from gradwire_compression.layout import Layout


class _Decodes(Protocol):
    def decode(self, payload: Tensor, layout: Layout, out: Tensor, weight: float, accumulate: bool) -> None: ...


class _CastsBack(Protocol):
    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None: ...


class Undo:
    """For kernels of a scaled codec."""

    takes_shards = False
    undo_bytes = 0

    def take_back(
        self: _Decodes,
        is_clean: Tensor,
        payload: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`; see `ScaledCodec.take_back`."""
        if not is_clean:
            decoded = torch.empty(layout.numel)
            self.decode(payload, layout.compact(), decoded, 1.0, False)
            restore(residual, layout, decoded, buffer)


class CastUndo:
    """For kernels of a cast."""

    undo_bytes = 0

    def take_back(
        self: _CastsBack,
        is_clean: Tensor,
        wire: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
        world_size: int,
        exponent: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`; see `CastCodec.take_back`."""
        if not is_clean:
            decoded = torch.empty(layout.numel)
            self.decode(wire, layout.compact(), decoded, exponent)
            restore(residual, layout, decoded.mul_(world_size), buffer)


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
