"""Blocks as rows of a matrix, in plain torch."""

import torch
from torch import Tensor

from gradwire_compression.layout import Layout


def rows(flat: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """Return (blocks [k, B] float32 with zero padding, places [k, B] in `flat`, mask [k, B] of real elements)."""
    column = torch.arange(layout.block)
    mask = column < layout.lengths[:, None]
    places = (layout.offsets[:, None] + column).masked_fill(~mask, 0)
    if flat.numel() == 0:
        return torch.zeros(mask.shape), places, mask
    return flat[places].to(torch.float32).masked_fill(~mask, 0.0), places, mask
