"""fp8 in plain torch: scale = max |v| / 448, codes are e4m3 floats of a true division, rounded half to even."""

import torch
from torch import Tensor


class Fp8Operation:
    """See `ScaledOperation`."""

    num_scales = 1

    def value_bytes(self, block: int) -> int:
        """Return one byte an element."""
        return block

    def scale(self, sums: Tensor, lengths: Tensor) -> Tensor:
        """Return max |v| / 448, so that the largest value is the largest code."""
        return sums.abs().amax(dim=1, keepdim=True) / 448.0

    def pack(self, sums: Tensor, scales: Tensor, mask: Tensor) -> Tensor:
        """Return the codes; a scale that was rounded down must not push the largest one to NaN."""
        codes = (sums / scales).clamp(-448.0, 448.0)
        return codes.to(torch.float8_e4m3fn).view(torch.uint8)

    def unpack(self, values: Tensor, scales: Tensor, block: int) -> Tensor:
        """Return code times scale."""
        return values.view(torch.float8_e4m3fn).to(torch.float32) * scales
