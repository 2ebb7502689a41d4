"""The cast in plain torch: (x + residual) / W times a power of two, rounded; the residual is what rounding lost."""

import torch
from torch import Tensor

from gradwire_compression.kernels.rows import rows
from gradwire_compression.kernels.undo.reference import CastUndo
from gradwire_compression.layout import Layout


class ReferenceCastKernels(CastUndo):
    """See `CastKernels`."""

    def encode(
        self,
        x: Tensor,
        layout: Layout,
        residual: Tensor,
        wire: Tensor,
        new_residual: Tensor,
        world_size: int,
        exponent: Tensor,
        largest: Tensor,
    ) -> None:
        """Cast (x + residual) / W * 2**exponent into `wire`; see `CastCodec.encode`."""
        gradient, _, mask = rows(x, layout)
        old, places, _ = rows(residual, layout.compact())
        sums = gradient + old
        # Python divides in double; the factor is the float32 quotient, as the kernel's is.
        power = 2.0 ** int(exponent)
        factor, unit = torch.ones(()) / torch.tensor(float(world_size)) * power, torch.tensor(world_size / power)
        is_zero = (gradient == 0).all(dim=1, keepdim=True)
        cast = (sums * factor).to(wire.dtype).masked_fill(is_zero, 0.0)
        is_bad = ~cast.isfinite().all(dim=1, keepdim=True)
        new = torch.where(is_zero | is_bad, old, sums - cast.to(torch.float32) * unit)
        wire[places[mask]] = cast[mask]
        new_residual[places[mask]] = new[mask]
        magnitudes = sums.abs().masked_fill(is_zero, 0.0)
        finite = magnitudes.masked_fill(~magnitudes.isfinite().all(dim=1, keepdim=True), 0.0)
        largest.copy_(torch.cat([torch.zeros(1), finite.flatten()]).max())

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None:
        """Write the elements of `wire` times 2**-exponent to their places in `out`."""
        values, _, mask = rows(wire, layout.compact())
        _, places, _ = rows(out, layout)
        out[places[mask]] = (values * 2.0 ** -int(exponent))[mask].to(out.dtype)
