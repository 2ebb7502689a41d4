"""int8 in plain torch: scale = max |v| / 127, codes by a true division, rounding half to even."""

import torch
from torch import Tensor


class Int8Operation:
    """See `ScaledOperation`."""

    num_scales = 1

    def value_bytes(self, block: int) -> int:
        """Return one byte an element."""
        return block

    def scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        """Return max |v| / 127, so that the largest value does not clip."""
        return sums.abs().amax(dim=1, keepdim=True) / 127.0

    def pack(self, sums: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
        """Return the codes, -127 to 127."""
        codes = (sums / scales).clamp(-127.0, 127.0).round()
        return codes.to(torch.int8).view(torch.uint8)

    def unpack(self, values: Tensor, scales: Tensor, block: int) -> Tensor:
        """Return code times scale."""
        return values.view(torch.int8).to(torch.float32) * scales
