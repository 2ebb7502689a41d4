"""CPU kernels for tensors of an accelerator that has none of its own: there and back again, slow and right."""

import torch
from torch import Tensor

from gradwire_compression.kernels.contracts import CastKernels, ScaledKernels
from gradwire_compression.layout import Layout

CPU = torch.device("cpu")


class HostKernels:
    """A scaled codec's kernels, on copies; every call waits for the device."""

    takes_shards = False
    undo_bytes = 0

    def __init__(self, kernels: ScaledKernels) -> None:
        self._kernels = kernels

    def encode(self, x: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor) -> None:
        """Encode x + residual."""
        sent, new = _like(payload), _like(new_residual)
        self._kernels.encode(x.to(CPU), layout, residual.to(CPU), sent, new)
        payload.copy_(sent)
        new_residual.copy_(new)

    def decode(self, payload: Tensor, layout: Layout, out: Tensor, weight: float, accumulate: bool) -> None:
        """Decode into `out`."""
        written = out.to(CPU)
        self._kernels.decode(payload.to(CPU), layout, written, weight, accumulate)
        out.copy_(written)

    def reduce(
        self, payloads: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor
    ) -> None:
        """Encode the mean of several payloads."""
        sent, new = _like(payload), _like(new_residual)
        self._kernels.reduce(payloads.to(CPU), layout, residual.to(CPU), sent, new)
        payload.copy_(sent)
        new_residual.copy_(new)

    def take_back(
        self,
        is_clean: Tensor,
        payload: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`."""
        old = residual.to(CPU)
        self._kernels.take_back(is_clean, payload.to(CPU), layout, old, buffer.to(CPU), undo)
        residual.copy_(old)


class HostCastKernels:
    """A cast's kernels, on copies; every call waits for the device."""

    undo_bytes = 0

    def __init__(self, kernels: CastKernels) -> None:
        self._kernels = kernels

    def encode(
        self,
        x: Tensor,
        layout: Layout,
        residual: Tensor,
        wire: Tensor,
        new_residual: Tensor,
        world_size: int,
        exponent: Tensor,
        largest: Tensor,
    ) -> None:
        """Cast (x + residual) / W * 2**exponent."""
        sent, new, noted = _like(wire), _like(new_residual), _like(largest)
        self._kernels.encode(x.to(CPU), layout, residual.to(CPU), sent, new, world_size, exponent.to(CPU), noted)
        wire.copy_(sent)
        new_residual.copy_(new)
        largest.copy_(noted)

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None:
        """Write the elements back."""
        written = out.to(CPU)
        self._kernels.decode(wire.to(CPU), layout, written, exponent.to(CPU))
        out.copy_(written)

    def take_back(
        self,
        is_clean: Tensor,
        wire: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
        world_size: int,
        exponent: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`."""
        old, sent, power = residual.to(CPU), wire.to(CPU), exponent.to(CPU)
        self._kernels.take_back(is_clean, sent, layout, old, buffer.to(CPU), undo, world_size, power)
        residual.copy_(old)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, device=CPU)
