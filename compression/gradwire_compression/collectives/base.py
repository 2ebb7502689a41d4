"""What every lossy collective can do with one bucket."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from gradwire_compression.trace import Trace


class LossyCollective(Protocol):
    """Averages the compressed tensors of one bucket; called on the Lane in this order every step.

    `exchange`, then `keep` or `take_back` according to whether all of the bucket is finite, then `receive`.
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

    def exchange(self, buffer: Tensor, trace: Trace) -> None:
        """Encode, send, and gather the encoded mean; the buffer is only read."""

    def own_nonfinite(self) -> tuple[str, ...]:
        """Return the parameters of which this rank just sent something that is not finite."""

    def is_finite(self) -> bool:
        """Return whether the encoded mean is finite; the same on every rank."""

    def keep(self) -> None:
        """Make the residuals of this step the valid ones."""

    def take_back(self, buffer: Tensor) -> None:
        """Bring back the residuals from before this step; `buffer` still holds the gradients."""

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
