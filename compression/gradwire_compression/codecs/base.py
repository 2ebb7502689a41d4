"""Codecs of blocks: int8, onebit and their like with one scale a block, and topk."""

from collections.abc import Iterable, Sequence
from itertools import product

import torch
from torch import Tensor

from gradwire_compression.buckets import pack
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.blocks import align, payload_bytes
from gradwire_compression.layout import Layout, Shards


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

    def encode_shards(self, x: Tensor, shards: Shards, residual: Tensor, payloads: Tensor) -> None:
        """Encode every shard as `encode` does, residuals in place; one launch where kernels are launched.

        Args:
            x: Flat, as in `encode`.
            shards: Of x.
            residual: [elements of the whole range].
            payloads: [shards, wire_bytes(blocks of a shard)], overwritten.
        """
        if self._kernels.takes_shards:
            self._kernels.encode(x, shards.whole, residual, payloads, residual)
            return
        for shard, payload, part in zip(shards.each, payloads, _parts(residual, shards), strict=True):
            self.encode(x, shard, part, payload)

    def decode_shards(self, payloads: Tensor, shards: Shards, out: Tensor) -> None:
        """Write every shard's values to its blocks of `out`, as `decode` does."""
        if self._kernels.takes_shards:
            self._kernels.decode(payloads, shards.whole, out, 1.0, False)
            return
        for shard, payload in zip(shards.each, payloads, strict=True):
            self.decode(payload, shard, out)

    def undo_bytes(self, num_elements: int) -> int:
        """Return the bytes that `take_back` needs for so many elements."""
        return self._kernels.undo_bytes * num_elements

    def take_back(
        self, is_clean: Tensor, payloads: Tensor, shards: Shards, residual: Tensor, buffer: Tensor, undo: Tensor
    ) -> None:
        """Undo `encode_shards` unless `is_clean`, right to rounding.

        Args:
            is_clean: [] bool; on an accelerator only the device reads it.
            payloads: What was encoded, untouched since.
            shards: Of `buffer`.
            residual: What `encode_shards` left, updated in place.
            buffer: The gradients that were encoded.
            undo: [undo_bytes / 4] float32, overwritten.
        """
        if self._kernels.takes_shards:
            self._kernels.take_back(is_clean, payloads, shards.whole, residual, buffer, undo)
            return
        for shard, payload, part in zip(shards.each, payloads, _parts(residual, shards), strict=True):
            self._kernels.take_back(is_clean, payload, shard, part, buffer, undo)

    def warm_up(self, device: torch.device, dtypes: Iterable[torch.dtype]) -> None:
        """Run every kernel on one block of each dtype, so that no step waits for a compiler.

        Kernels differ by whether blocks begin at multiples of four elements.
        """
        for dtype, numel in product(dtypes, (self.block, 3)):
            shards = Layout.build(pack([("", numel)]), self.block).deal(0, 1, 1)
            x, undo = torch.zeros(numel, dtype=dtype, device=device), torch.zeros(numel, device=device)
            old, new = (torch.zeros(numel, device=device) for _ in range(2))
            payloads = torch.empty(1, self.wire_bytes(1), dtype=torch.uint8, device=device)
            self.encode_shards(x, shards, old, payloads)
            self.reduce(payloads, shards.whole.compact(), old, payloads[0].clone(), new)
            self.decode_shards(payloads, shards, x)
            self.take_back(torch.zeros((), dtype=torch.bool, device=device), payloads, shards, old, x, undo)

    def are_finite(self, payloads: Tensor, num_blocks: int) -> Tensor:
        """Return [n, num_blocks] bool: which blocks of payloads [n, wire_bytes(num_blocks)] are finite."""
        begin = align(num_blocks * self.value_bytes)
        scales = payloads[:, begin : begin + 2 * num_blocks * self.num_scales].view(torch.bfloat16)
        # All numbers of a block that is not finite are NaN.
        return scales[:, :: self.num_scales].isfinite()


def _parts(residual: Tensor, shards: Shards) -> Sequence[Tensor]:
    return torch.split(residual, [shard.numel for shard in shards.each])
