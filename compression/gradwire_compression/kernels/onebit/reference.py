"""onebit in plain torch: scale = mean |v| of the block, one sign bit an element.

Source: 1-bit SGD with error feedback; the mean of magnitudes is the least-squares scale for signs. Ours has one
scale a block instead of one a tensor.
"""

import torch
from torch import Tensor

from gradwire_compression.kernels.blocks import lane_sum


class OnebitOperation:
    """See `ScaledOperation`."""

    num_scales = 1

    def value_bytes(self, block: int) -> int:
        """Return one bit an element, in whole bytes."""
        return -(-block // 8)

    def scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        """Return the mean of magnitudes; padding does not count."""
        return (lane_sum(sums.abs()) / lengths.to(torch.float32))[:, None]

    def pack(self, sums: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
        """Return the sign bits: element i is bit i % 8 of byte i // 8."""
        signs = torch.signbit(sums) & mask
        bits = torch.nn.functional.pad(signs.to(torch.uint8), (0, -signs.shape[1] % 8))
        weights = 2 ** torch.arange(8, dtype=torch.uint8)
        return (bits.view(len(bits), -1, 8) * weights).sum(dim=2, dtype=torch.uint8)

    def unpack(self, values: Tensor, scales: Tensor, block: int) -> Tensor:
        """Return plus or minus the scale."""
        bits = (values[:, :, None] >> torch.arange(8, dtype=torch.uint8)) & 1
        is_negative = bits.view(len(values), -1)[:, :block].to(torch.bool)
        return torch.where(is_negative, -scales, scales)
