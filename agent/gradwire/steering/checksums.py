"""Checksums of tensors: equal for equal bits, wherever the tensors lie, without a copy of them or a host's wait."""

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

# Words are summed in so many columns, each with a weight of its own. A prime, since what changes places within a
# column goes unseen: rows of a matrix do only where their length is a multiple of it.
_COLUMNS = 251

# Bytes that do not fill a word have columns of their own behind these.
_WORD_BYTES = 8
_ALL_COLUMNS = _COLUMNS + _WORD_BYTES - 1

_MULTIPLIER = 6364136223846793005


def checksums(tensors: Sequence[Tensor]) -> Tensor:
    """Return [len(tensors)] int64, one number a tensor, computed on the tensors' device.

    Args:
        tensors: Any dtype and strides, all on one device; read as they lie in memory.

    Cost: reads every byte once, about 0.4 ms for a million float32 on one CPU core; 2 KB for each tensor meanwhile.
        Does not synchronise the device.
    """
    sums = torch.zeros(len(tensors), _ALL_COLUMNS, dtype=torch.int64, device=tensors[0].device)
    for tensor, columns in zip(tensors, sums, strict=True):
        _add(tensor.detach(), columns)
    return (sums * _weights().to(sums.device, non_blocking=True)).sum(dim=1)


def fold(numbers: Tensor) -> int:
    """Return one number below 2**48, which a float64 holds exactly, for int64 `numbers` on the CPU."""
    value = 0
    for number in numbers.tolist():
        value = (value * _MULTIPLIER + number) % 2**64
    return value >> 16


def _add(tensor: Tensor, columns: Tensor) -> None:
    memory = _memory(tensor)
    num_whole = memory.numel() // _WORD_BYTES * _WORD_BYTES
    words = memory[:num_whole].view(torch.int64)
    num_rows = words.numel() // _COLUMNS
    if num_rows:
        torch.sum(words[: num_rows * _COLUMNS].view(num_rows, _COLUMNS), dim=0, out=columns[:_COLUMNS])
    rest = words[num_rows * _COLUMNS :]
    columns[: rest.numel()].add_(rest)
    tail = memory[num_whole:]
    columns[_COLUMNS : _COLUMNS + tail.numel()].copy_(tail)


def _memory(tensor: Tensor) -> Tensor:
    """Return the tensor's bytes in the order in which they lie; a copy only where they do not lie together."""
    strides = tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: strides[dim], reverse=True)
    flat = tensor.permute(order).reshape(-1).contiguous()
    if flat.storage_offset() * flat.element_size() % _WORD_BYTES:
        flat = flat.clone()
    return flat.view(torch.uint8)


@functools.cache
def _weights() -> Tensor:
    """Return [_ALL_COLUMNS] odd int64: a change of one column always changes the weighted sum."""
    values, value = [], 1
    for _ in range(_ALL_COLUMNS):
        value = value * _MULTIPLIER % 2**64
        values.append(value - 2**64 if value >= 2**63 else value)
    return torch.tensor(values, dtype=torch.int64)
