"""Codecs of blocks: int8, onebit and their like with one scale a block, and topk."""

import torch
from torch import Tensor

from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.blocks import align, payload_bytes
from gradwire_compression.layout import Layout


class ScaledCodec:
    """Turns the blocks of a layout into one payload of a size known beforehand; holds no state, sends nothing.

    A payload is all values, then all bf16 scales, each part padded with zeros to 16 bytes. A block whose gradient
    is exactly zero has the scale zero; a block that is not finite has the scale NaN. Those of topk are indices and
    the elements that are found there.
    """

    def __init__(self, name: str, block: int, device: torch.device, num_scales: int = 1) -> None:
        self.name = name
        # Elements of a full block, the bytes that its values take, and its bf16 numbers.
        self.block = block
        self.value_bytes = dispatch.value_bytes(name, block, num_scales)
        self.num_scales = num_scales
        self._kernels = dispatch.scaled_kernels(name, device, num_scales)

    def wire_bytes(self, num_blocks: int) -> int:
        """Return the exact size of a payload, scales and padding included."""
        return payload_bytes(num_blocks, self.value_bytes, self.num_scales)

    def encode(
        self,
        x: Tensor,
        layout: Layout,
        residual: Tensor,
        payload: Tensor,
        new_residual: Tensor | None = None,
    ) -> None:
        """Encode x + residual; what the payload does not say becomes the new residual.

        A block whose gradient is exactly zero sends zero and keeps its residual; a block that is not finite sends
        NaN and keeps it too.

        Args:
            x: Flat float32, bfloat16 or float16, contiguous; only the layout's blocks are read.
            layout: Blocks of `x`.
            residual: [layout.numel] float32 in compact order, in gradient units.
            payload: [wire_bytes(layout.num_blocks)] uint8, 16-byte aligned; all of it is overwritten.
            new_residual: Like `residual`, overwritten; None means in place.

        Cost: reads x and residual once, writes residual and payload once.
        """
        assert payload.numel() == self.wire_bytes(layout.num_blocks)
        self._kernels.encode(x, layout, residual, payload, residual if new_residual is None else new_residual)

    def decode(
        self, payload: Tensor, layout: Layout, out: Tensor, weight: float = 1.0, accumulate: bool = False
    ) -> None:
        """Write, or add where `accumulate` is set, weight * value to the layout's blocks of `out`.

        Args:
            payload: What `encode` made for a layout with the same lengths.
            layout: Where the blocks lie in `out`.
            out: Flat float32, or bfloat16 or float16 (rounded half to even) unless `accumulate` is set.
            weight: Factor, float32.
            accumulate: Add instead of overwriting.
        """
        assert payload.numel() == self.wire_bytes(layout.num_blocks)
        self._kernels.decode(payload, layout, out, weight, accumulate)

    def reduce(
        self, payloads: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor
    ) -> None:
        """Decode the payloads of all ranks, sum them in float32 in rank order, divide once and encode the mean.

        Args:
            payloads: [W, wire_bytes(layout.num_blocks)] uint8.
            layout: In compact order.
            residual: [layout.numel] float32, the owner's.
            payload: Overwritten, as in `encode`.
            new_residual: Like `residual`, overwritten.
        """
        assert payloads.shape[1] == self.wire_bytes(layout.num_blocks) == payload.numel()
        self._kernels.reduce(payloads, layout, residual, payload, new_residual)

    def are_finite(self, payloads: Tensor, num_blocks: int) -> Tensor:
        """Return [n, num_blocks] bool: which blocks of payloads [n, wire_bytes(num_blocks)] are finite."""
        begin = align(num_blocks * self.value_bytes)
        scales = payloads[:, begin : begin + 2 * num_blocks * self.num_scales].view(torch.bfloat16)
        # All numbers of a block that is not finite are NaN.
        return scales[:, :: self.num_scales].isfinite()
