"""The bf16 cast in plain torch: (x + residual) / W rounded to bf16; the residual is what rounding lost."""

import torch
from torch import Tensor

from gradwire_compression.kernels.blocks import rows
from gradwire_compression.layout import Layout


class ReferenceCastKernels:
    """See `CastKernels`."""

    def encode(
        self, x: Tensor, layout: Layout, residual: Tensor, wire: Tensor, new_residual: Tensor, world_size: int
    ) -> None:
        """Cast (x + residual) / W into `wire`; see `BF16Codec.encode`."""
        gradient, _, mask = rows(x, layout)
        old, places, _ = rows(residual, layout.compact())
        sums = gradient + old
        # Python divides in double; the factor is the float32 quotient, as the kernel's is.
        factor = torch.ones(()) / torch.tensor(float(world_size))
        is_zero = (gradient == 0).all(dim=1, keepdim=True)
        cast = (sums * factor).to(torch.bfloat16).masked_fill(is_zero, 0.0)
        is_bad = ~cast.isfinite().all(dim=1, keepdim=True)
        new = torch.where(is_zero | is_bad, old, sums - cast.to(torch.float32) * float(world_size))
        wire[places[mask]] = cast[mask]
        new_residual[places[mask]] = new[mask]

    def decode(self, wire: Tensor, layout: Layout, out: Tensor) -> None:
        """Write the elements of `wire` to their places in `out`."""
        values, _, mask = rows(wire, layout.compact())
        _, places, _ = rows(out, layout)
        out[places[mask]] = values[mask].to(out.dtype)
