"""int4 in plain torch: scale = max |v| / 7, codes by a true division, rounding half to even."""

import torch
from torch import Tensor


class Int4Operation:
    """See `ScaledOperation`."""

    num_scales = 1

    def value_bytes(self, block: int) -> int:
        """Return half a byte an element, in whole bytes."""
        return -(-block // 2)

    def scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        """Return max |v| / 7, so that the largest value does not clip."""
        return sums.abs().amax(dim=1, keepdim=True) / 7.0

    def pack(self, sums: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
        """Return the codes, -7 to 7 in two's complement: even elements in low halves of bytes, odd ones in high."""
        codes = (sums / scales).clamp(-7.0, 7.0).round().to(torch.int8).view(torch.uint8) & 15
        pairs = torch.nn.functional.pad(codes, (0, codes.shape[1] % 2)).view(len(codes), -1, 2)
        return pairs[:, :, 0] | pairs[:, :, 1] << 4

    def unpack(self, values: Tensor, scales: Tensor, block: int) -> Tensor:
        """Return code times scale."""
        halves = torch.stack([values & 15, values >> 4], dim=2).view(len(values), -1)[:, :block]
        codes = (halves ^ 8).to(torch.float32) - 8.0
        return codes * scales
