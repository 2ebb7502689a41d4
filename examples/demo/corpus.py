"""The training text: the source of Python's own standard library, which every machine with Python has."""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor


def load() -> Tensor:
    """Return the modules of the standard library one after the other, [num_bytes] uint8, a few megabytes."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"\n".join(module.read_bytes() for module in modules)), dtype=torch.uint8)


def batches(text: Tensor, *, size: int, length: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (input, target) for ever, each [size, length] int64, from places drawn with `seed`."""
    generator = torch.Generator().manual_seed(seed)
    span = torch.arange(length + 1)
    while True:
        starts = torch.randint(len(text) - length, (size, 1), generator=generator)
        rows = text[starts + span].long()
        yield rows[:, :-1], rows[:, 1:]
