"""Memory of a plan: buffers that its buckets use one after the other, and vectors that are theirs."""

import torch
from torch import Tensor


def zeros(numel: int, device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return [numel] zeros in memory that is really there: what cannot be had fails here, not in a later step."""
    return torch.empty(numel, dtype=dtype, device=device).zero_()


def choose(is_first: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Return (the one that [] bool `is_first` asks for, the other or anything), without waiting for a device."""
    if is_first.device.type == "cpu":
        # Here the flag is known, and swapping moves nothing.
        return (first, second) if is_first else (second, first)
    return torch.where(is_first, first, second, out=second), first


class Scratch:
    """Named byte buffers, each as large as the largest reservation; the Lane lends them to one bucket at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._buffers: dict[str, Tensor] = {}
        self._sections: dict[str, Scratch] = {}

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        own = sum(buffer.numel() for buffer in self._buffers.values())
        return own + sum(section.num_bytes for section in self._sections.values())

    def section(self, name: str) -> "Scratch":
        """Return buffers of the same names apart from these, for what one bucket does beside the rest of itself."""
        return self._sections.setdefault(name, Scratch(self.device))

    def reserve(self, name: str, num_bytes: int) -> None:
        """Make sure that `take` can hand out that much without allocating."""
        held = self._buffers.get(name)
        if held is None or held.numel() < num_bytes:
            self._buffers[name] = zeros(num_bytes, self.device, torch.uint8)

    def take(self, name: str, num_bytes: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return the first `num_bytes` of a reserved buffer as a flat tensor; its content is whatever it was."""
        return self._buffers[name][:num_bytes].view(dtype)
