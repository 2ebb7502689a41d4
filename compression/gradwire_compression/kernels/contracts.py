"""What the kernels of every backend can do; the codecs document the arguments."""

from typing import Protocol

from torch import Tensor

from gradwire_compression.layout import Layout


class ScaledKernels(Protocol):
    """Encode, decode and reduce of one scaled codec; `ScaledCodec` documents the arguments."""

    @property
    def takes_shards(self) -> bool:
        """Return whether one call encodes or decodes several payloads, [k, bytes]."""

    @property
    def undo_bytes(self) -> int:
        """Return the bytes for each element that `take_back` needs besides."""

    def encode(self, x: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor) -> None:
        """Encode x + residual."""

    def decode(self, payload: Tensor, layout: Layout, out: Tensor, weight: float, accumulate: bool) -> None:
        """Decode into `out`."""

    def reduce(
        self, payloads: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor
    ) -> None:
        """Encode the mean of several payloads."""

    def take_back(
        self,
        is_clean: Tensor,
        payload: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`."""


class CastKernels(Protocol):
    """Encode and decode of the casts; `CastCodec` documents the arguments."""

    @property
    def undo_bytes(self) -> int:
        """Return the bytes for each element that `take_back` needs besides."""

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
        """Cast (x + residual) / W * 2**exponent."""

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None:
        """Write the elements back."""

    def take_back(
        self,
        is_clean: Tensor,
        wire: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
        world_size: int,
        exponent: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`."""
