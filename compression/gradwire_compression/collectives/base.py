"""What every lossy collective can do with one bucket."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from torch import Tensor

from gradwire_compression.trace import Trace


class LossyCollective(Protocol):
    """Averages the compressed tensors of one bucket; called on the Lane in this order every step.

    `exchange`, then `settle` by whether all of the bucket is finite, then `receive`. Whether it is stays a tensor
    where the bucket is: no rank's host has to wait for its device.
    """

    # What one rank sends in one step, bytes.
    wire_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Residuals of this bucket, bytes."""

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Begin with the residuals that are held for these parameters, the others at zero.

        Called between steps, at the same point on all ranks, which may hold different ones.
        """

    def exchange(self, buffer: Tensor, trace: Trace) -> Iterator[None]:
        """Encode, send, and gather the encoded mean, a hop at a time; the buffer is only read.

        Yields where something is on its way and the caller may do other work; ends when all has arrived.
        """

    def is_finite(self) -> Tensor:
        """Return [] bool: whether the encoded mean is finite; the same on every rank."""

    def own_nonfinite(self, buffer: Tensor) -> Tensor:
        """Return [parameters] bool: of which of them this rank sent something that is not finite.

        `buffer` still holds the gradients.
        """

    def settle(self, is_clean: Tensor, buffer: Tensor) -> None:
        """Make this step's residuals the valid ones if `is_clean`, else bring back those from before it.

        Args:
            is_clean: [] bool, the same on every rank: whether all of the bucket is finite.
            buffer: Still holds the gradients.
        """

    def receive(self, buffer: Tensor, trace: Trace) -> None:
        """Write the decoded mean into the buffer."""

    def worker_residual(self) -> Tensor:
        """Return a new [n] float32: this rank's residual without what it holds as an owner; `load` undoes it."""

    def owner_parts(self) -> list[tuple[int, Tensor]]:
        """Return (place in compact order, view) of what this rank holds as an owner; empty where nobody is one."""

    def rescale(self, factor: float) -> None:
        """Multiply all residuals of this rank, between steps."""

    def owed(self) -> Tensor:
        """Return a new [n] float32: this rank's residual plus W times what it holds as an owner.

        Local, without traffic; the sum over ranks is W times the mean's whole debt, whoever owns what afterwards.
        """

    def owed_at(self, places: Tensor) -> Tensor:
        """Return elements of `owed` by their places in compact order, [k] int64, without waiting for a device."""
