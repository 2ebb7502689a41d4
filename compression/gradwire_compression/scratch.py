"""Buffers that the buckets of a plan use one after the other."""

import torch
from torch import Tensor


class Scratch:
    """Named byte buffers, each as large as the largest reservation; the Lane lends them to one bucket at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(buffer.numel() for buffer in self._buffers.values())

    def reserve(self, name: str, num_bytes: int) -> None:
        """Make sure that `take` can hand out that much without allocating."""
        held = self._buffers.get(name)
        if held is None or held.numel() < num_bytes:
            self._buffers[name] = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)

    def take(self, name: str, num_bytes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return the first `num_bytes` of a reserved buffer as a flat tensor; its content is whatever it was."""
        return self._buffers[name][:num_bytes].view(dtype)
