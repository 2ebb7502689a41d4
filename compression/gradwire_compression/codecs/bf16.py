"""bf16: half the bytes of float32 by a cast and a native all-reduce."""

import torch
from torch import Tensor

from gradwire_compression.codecs.facts import CodecFacts
from gradwire_compression.kernels import dispatch
from gradwire_compression.layout import Layout

FACTS = CodecFacts("bf16", 16.0, is_lossy=True, has_residual=True)

# Elements that share one decision to send nothing; there is no scale.
BLOCK = 1024


class BF16Codec:
    """Casts the blocks of a layout to bfloat16 in compact order; holds no state, sends nothing."""

    name = "bf16"
    block = BLOCK

    def __init__(self, device: torch.device) -> None:
        self._kernels = dispatch.cast_kernels(device)

    def wire_bytes(self, num_elements: int) -> int:
        """Return the bytes of the cast elements."""
        return 2 * num_elements

    def encode(self, x: Tensor, layout: Layout, residual: Tensor, wire: Tensor, world_size: int) -> None:
        """Cast (x + residual) / W; what rounding loses becomes the residual, in gradient units.

        A block whose gradient is exactly zero sends zero and keeps its residual; a block that is not finite is sent
        as it is and keeps its residual.

        Args:
            x: Flat float32, bfloat16 or float16, contiguous.
            layout: Blocks of `x`.
            residual: [layout.numel] float32 in compact order, updated in place.
            wire: [layout.numel] bfloat16, overwritten.
            world_size: W; dividing before the sum keeps large gradients finite.
        """
        self._kernels.encode(x, layout, residual, wire, residual, world_size)

    def decode(self, wire: Tensor, layout: Layout, out: Tensor) -> None:
        """Write the elements of `wire` to the layout's blocks of `out`."""
        self._kernels.decode(wire, layout, out)
