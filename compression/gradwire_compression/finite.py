"""Whether tensors hold numbers."""

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Return whether all elements are finite, in one pass without a mask of the tensor's size."""
    if tensor.numel() == 0:
        return True
    smallest, largest = torch.aminmax(tensor)
    return bool(smallest.isfinite() & largest.isfinite())
