"""Codecs that cast for a native all-reduce: bf16 and fp16."""

from collections.abc import Iterable
from itertools import product

import torch
from torch import Tensor

from gradwire_compression.buckets import pack
from gradwire_compression.kernels import dispatch
from gradwire_compression.layout import Layout

# Elements that share one decision to send nothing; there is no scale.
BLOCK = 1024

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class CastCodec:
    """Casts the blocks of a layout to two bytes an element in compact order; holds no state, sends nothing."""

    block = BLOCK

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.dtype = _DTYPES[name]
        # bfloat16 has float32's range and needs no power of two.
        self.is_scaled = name == "fp16"
        self._kernels = dispatch.cast_kernels(name, device)

    def wire_bytes(self, num_elements: int) -> int:
        """Return the bytes of the cast elements."""
        return 2 * num_elements

    def encode(
        self,
        x: Tensor,
        layout: Layout,
        residual: Tensor,
        wire: Tensor,
        world_size: int,
        exponent: Tensor,
        largest: Tensor,
    ) -> None:
        """Cast (x + residual) / W * 2**exponent; what rounding loses becomes the residual, in gradient units.

        A block whose gradient is exactly zero sends zero and keeps its residual; a block that is not finite is sent
        as it is and keeps its residual.

        Args:
            x: Flat float32, bfloat16 or float16, contiguous.
            layout: Blocks of `x`.
            residual: [layout.numel] float32 in compact order, updated in place.
            wire: [layout.numel] of the codec's dtype, overwritten.
            world_size: W; dividing before the sum keeps large gradients finite.
            exponent: [1] int32 on the device of `x`, -115 to 100; 0 unless the codec is scaled.
            largest: [1] float32 there, overwritten with the largest magnitude of x + residual in blocks that are
                sent and finite, 0 if there are none; meaningless unless the codec is scaled.
        """
        self._kernels.encode(x, layout, residual, wire, residual, world_size, exponent, largest)

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
        """Undo an encode unless `is_clean`, right to rounding.

        Args:
            is_clean: [] bool; on an accelerator only the device reads it.
            wire: What was encoded, untouched since.
            layout: As in `encode`.
            residual: What `encode` left, updated in place.
            buffer: The gradients that were encoded.
            undo: [undo_bytes / 4] float32, overwritten.
            world_size: As in `encode`.
            exponent: As in `encode`.
        """
        self._kernels.take_back(is_clean, wire, layout, residual, buffer, undo, world_size, exponent)

    def warm_up(self, device: torch.device, dtypes: Iterable[torch.dtype]) -> None:
        """Run every kernel on one block of each dtype, so that no step waits for a compiler.

        Kernels differ by whether blocks begin at multiples of four elements.
        """
        for dtype, numel in product(dtypes, (self.block, 3)):
            layout = Layout.build(pack([("", numel)]), self.block)
            x, wire = (torch.zeros(numel, dtype=kind, device=device) for kind in (dtype, self.dtype))
            residual, undo = (torch.zeros(numel, device=device) for _ in range(2))
            exponent, largest = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(1, device=device)
            self.encode(x, layout, residual, wire, 1, exponent, largest)
            self.decode(wire, layout, x, exponent)
            is_clean = torch.zeros((), dtype=torch.bool, device=device)
            self.take_back(is_clean, wire, layout, residual, x, undo, 1, exponent)

    def undo_bytes(self, num_elements: int) -> int:
        """Return the bytes that `take_back` needs for so many elements."""
        return self._kernels.undo_bytes * num_elements

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None:
        """Write the elements of `wire` times 2**-exponent to the layout's blocks of `out`."""
        self._kernels.decode(wire, layout, out, exponent)
