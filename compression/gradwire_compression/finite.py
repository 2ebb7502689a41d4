"""Whether tensors hold numbers, as flags that stay where the tensors are."""

from collections.abc import Iterable
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad


def finite_flag(tensor: Tensor) -> Tensor:
    """Return [] bool: whether all elements are finite, in one pass without a mask of the tensor's size."""
    if tensor.numel() == 0:
        return torch.ones((), dtype=torch.bool, device=tensor.device)
    smallest, largest = torch.aminmax(tensor)
    return smallest.isfinite() & largest.isfinite()


def is_finite(tensor: Tensor) -> bool:
    """Return whether all elements are finite; waits for the tensor's device."""
    return bool(finite_flag(tensor))


def ends_of(sizes: Iterable[int], device: torch.device) -> Tensor:
    """Return [k] int64: where parts of these sizes end that lie one after the other."""
    return torch.tensor([*accumulate(sizes)], dtype=torch.int64).to(device)


def nonfinite_tensors(flat: Tensor, ends: Tensor) -> Tensor:
    """Return [k] bool: which of the k tensors in `flat` are not finite; `ends` says where they end."""
    if flat.device.type == "cpu" and finite_flag(flat):
        # Here the flag is known, and one pass is all that the usual case takes.
        return torch.zeros(len(ends), dtype=torch.bool)
    return nonfinite_parts(~flat.isfinite(), ends)


def nonfinite_parts(is_bad: Tensor, ends: Tensor) -> Tensor:
    """Return [k] bool: in which of the k parts of a flat mask something is set; `ends` says where they end."""
    counts = pad(is_bad.cumsum(0), (1, 0))[ends]
    return counts > pad(counts, (1, 0))[:-1]
