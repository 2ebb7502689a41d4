"""What the references share: the rules that hold for every scaled codec."""

from typing import Protocol

import torch
from torch import Tensor

from gradwire_compression.kernels.rows import rows
from gradwire_compression.kernels.undo.reference import Undo
from gradwire_compression.layout import Layout

NUM_LANES = 32


def align(num_bytes: int) -> int:
    """Return `num_bytes` rounded up to 16, so that what follows starts aligned for vector loads."""
    return -(-num_bytes // 16) * 16


def payload_bytes(num_blocks: int, value_bytes: int, num_scales: int = 1) -> int:
    """Return the size of a payload: all values, then all bf16 scales, each part padded to 16 bytes."""
    return align(num_blocks * value_bytes) + align(num_blocks * num_scales * 2)


class ScaledOperation(Protocol):
    """What one codec does with a matrix of blocks, in plain torch; n is `num_scales`."""

    @property
    def num_scales(self) -> int:
        """Return the bf16 numbers that a payload holds for each block: its scale, or what is sent of it."""

    def value_bytes(self, block: int) -> int:
        """Return the bytes that the values of one full block take."""

    def scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        """Return [k, n] float32, the scales of each row before they are rounded; not finite if the row is not."""

    def pack(self, sums: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
        """Return [k, value_bytes] uint8; `scales` [k, n] are finite and not all zero, padding is zero."""

    def unpack(self, values: Tensor, scales: Tensor, block: int) -> Tensor:
        """Return [k, block] float32, what the values stand for."""


def lane_sum(magnitudes: Tensor) -> Tensor:
    """Return [k], the sum of each row in the defined order: 32 lanes one after the other, then by halves."""
    num_rows, length = magnitudes.shape
    padded = torch.nn.functional.pad(magnitudes, (0, -length % NUM_LANES)).view(num_rows, -1, NUM_LANES)
    lanes = torch.zeros(num_rows, NUM_LANES)
    for index in range(padded.shape[1]):
        lanes = lanes + padded[:, index]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


class ReferenceKernels(Undo):
    """Encode, decode and reduce of a scaled codec as plain torch operations: slow, short and the truth."""

    def __init__(self, operation: ScaledOperation) -> None:
        self._operation = operation

    def encode(self, x: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor) -> None:
        """Encode x + residual; see `ScaledCodec.encode`."""
        values_view, scales_view = self._parts(payload, layout)
        gradient, _, mask = rows(x, layout)
        old, places, _ = rows(residual, layout.compact())
        sums = gradient + old
        is_zero = (gradient == 0).all(dim=1, keepdim=True)
        scales = self._operation.scale(sums, layout.lengths).to(torch.bfloat16)
        is_bad = ~scales.isfinite().all(dim=1, keepdim=True) & ~is_zero
        is_sent = ~is_zero & ~is_bad & (scales != 0).any(dim=1, keepdim=True)
        scales = scales.masked_fill(~is_sent, 0.0).masked_fill(is_bad, torch.nan)
        safe = scales.to(torch.float32).masked_fill(~is_sent, 1.0)
        values = self._operation.pack(sums.masked_fill(~is_sent, 0.0), safe, mask)
        values = values.masked_fill(~is_sent, 0)
        decoded = self._operation.unpack(values, scales.to(torch.float32), layout.block)
        # Scales that round to zero send zero: the residual takes all of the sum.
        new = torch.where(is_sent, sums - decoded, sums)
        new = torch.where(is_zero | is_bad, old, new)
        payload.zero_()
        values_view.copy_(values)
        scales_view.copy_(scales)
        new_residual[places[mask]] = new[mask]

    def decode(self, payload: Tensor, layout: Layout, out: Tensor, weight: float, accumulate: bool) -> None:
        """Decode into `out`; see `ScaledCodec.decode`."""
        values, scales = self._parts(payload, layout)
        decoded = self._operation.unpack(values, scales.to(torch.float32), layout.block)
        old, places, mask = rows(out, layout)
        new = weight * decoded
        if accumulate:
            new = old + new
        out[places[mask]] = new[mask].to(out.dtype)

    def reduce(
        self, payloads: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor
    ) -> None:
        """Encode the mean of several payloads; see `ScaledCodec.reduce`."""
        compact = layout.compact()
        mean = torch.empty(layout.numel)
        for index, one in enumerate(payloads):
            self.decode(one, compact, mean, 1.0, accumulate=index > 0)
        mean /= len(payloads)
        self.encode(mean, compact, residual, payload, new_residual)

    def _parts(self, payload: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
        value_bytes = self._operation.value_bytes(layout.block)
        used = layout.num_blocks * value_bytes
        values = payload[:used].view(layout.num_blocks, value_bytes)
        begin, num_scales = align(used), self._operation.num_scales
        scales = payload[begin : begin + 2 * num_scales * layout.num_blocks].view(torch.bfloat16)
        return values, scales.view(layout.num_blocks, num_scales)
