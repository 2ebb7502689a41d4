"""Memory of a plan: buffers that its buckets use one after the other, and vectors that are theirs."""

import torch
from torch import Tensor


def zeros(numel: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [numel] zeros in memory that is really there: what cannot be had fails here, not in a later step."""
    return torch.empty(numel, dtype=dtype, device=device).zero_()


class Scratch:
    """Named byte buffers, each as large as the largest reservation; the Lane lends them to one bucket at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[str, Tensor] = {}
        self._sections: dict[str, Scratch] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        own = sum(buffer.numel() for buffer in self._buffers.values())
        return own + sum(section.num_bytes for section in self._sections.values())

    def section(self, name: str) -> "Scratch":
        """Return buffers of the same names apart from these, for what one bucket does beside the rest of itself."""
        return self._sections.setdefault(name, Scratch(self._device))

    def reserve(self, name: str, num_bytes: int) -> None:
        """Make sure that `take` can hand out that much without allocating."""
        held = self._buffers.get(name)
        if held is None or held.numel() < num_bytes:
            self._buffers[name] = zeros(num_bytes, self._device, torch.uint8)

    def take(self, name: str, num_bytes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return the first `num_bytes` of a reserved buffer as a flat tensor; its content is whatever it was."""
        return self._buffers[name][:num_bytes].view(dtype)
