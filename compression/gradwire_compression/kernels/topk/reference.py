"""topk in plain torch: the largest magnitudes of each block, an index byte and a bf16 value each."""

import torch
from torch import Tensor


class TopkOperation:
    """See `ScaledOperation`; the bf16 numbers of a block are the values that are sent, in order of their index."""

    def __init__(self, num_kept: int) -> None:
        self.num_scales = num_kept

    def value_bytes(self, block: int) -> int:
        """Return a byte for each index."""
        assert self.num_scales <= block <= 256
        return self.num_scales

    def scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        """Return the values that are sent; a block shorter than that is filled up with zeros."""
        indices, is_real = self._largest(sums, lengths)
        # What rounds to zero is sent without a sign, so that a sum over ranks may leave out what was not sent.
        return sums.gather(1, indices).masked_fill(~is_real, 0.0).to(torch.bfloat16).to(torch.float32) + 0.0

    def pack(self, sums: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
        """Return the indices; a block shorter than that is filled up with zeros."""
        indices, is_real = self._largest(sums, mask.sum(dim=1))
        return indices.masked_fill(~is_real, 0).to(torch.uint8)

    def unpack(self, values: Tensor, scales: Tensor, block: int) -> Tensor:
        """Return what was sent at its place and zero elsewhere; NaN everywhere in a block that was not finite."""
        decoded = torch.zeros(len(values), block)
        # From the last to the first, so that what a short block is filled up with does not win at place 0.
        for column in reversed(range(self.num_scales)):
            decoded.scatter_(1, values[:, column : column + 1].to(torch.int64), scales[:, column : column + 1])
        return decoded.masked_fill(~scales[:, :1].isfinite(), torch.nan)

    def _largest(self, sums: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Return (indices of the largest magnitudes, ascending, and which of them are not padding), [k, n] each."""
        column = torch.arange(sums.shape[1])
        magnitudes = sums.abs().masked_fill(column >= lengths[:, None], -1.0)
        # A stable sort gives equal magnitudes in order of their index.
        order = magnitudes.sort(dim=1, descending=True, stable=True).indices[:, : self.num_scales]
        indices = order.sort(dim=1).values
        return indices, indices < lengths[:, None]
