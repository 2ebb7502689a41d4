"""How a parameter lies in memory, which is how its gradient lies in a bucket."""

from collections.abc import Mapping

import torch
from torch import Tensor


def memory_order(parameter: Tensor) -> list[int]:
    """Return the dimensions larger than one, the outermost in memory first, as a bucket lays out the gradient.

    A parameter with gaps or overlaps has a contiguous gradient.
    """
    strides = parameter.stride()
    dims = [dim for dim in range(parameter.dim()) if parameter.shape[dim] != 1]
    ordered = sorted(dims, key=lambda dim: -strides[dim])
    expected = 1
    for dim in reversed(ordered):
        if strides[dim] != expected:
            return dims
        expected *= parameter.shape[dim]
    return ordered


def is_permuted(parameter: Tensor) -> bool:
    """Return whether the gradient lies in another order than that of the dimensions."""
    order = memory_order(parameter)
    return order != sorted(order)


def as_parameter(flat: Tensor, parameter: Tensor) -> Tensor:
    """Return a view in the parameter's shape of a contiguous [numel] that lies in memory as its gradient does."""
    strides, step = [1] * parameter.dim(), 1
    for dim in reversed(memory_order(parameter)):
        strides[dim] = step
        step *= parameter.shape[dim]
    return flat.as_strided(parameter.shape, strides)


def as_flat(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return [numel], the elements of a tensor of the parameter's shape as its gradient lies in memory."""
    order = memory_order(parameter)
    ones = [dim for dim in range(parameter.dim()) if dim not in order]
    return tensor.permute((*ones, *order)).reshape(-1)


def as_parameters(held: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies in the parameters' shapes of contiguous [numel] that lie in memory as the gradients do."""
    return {name: as_parameter(tensor.clone(), parameters[name]) for name, tensor in held.items()}


def as_flats(held: Mapping[str, Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return [numel] float32 that lie in memory as the gradients do, on the parameters' devices."""
    return {
        name: as_flat(tensor.to(parameters[name].device, torch.float32), parameters[name])
        for name, tensor in held.items()
    }


def permuted(parameters: Mapping[str, Tensor]) -> dict[str, list[int]]:
    """Return the memory order of those parameters that lie in another than that of their dimensions."""
    return {name: memory_order(tensor) for name, tensor in parameters.items() if is_permuted(tensor)}
