"""What one training step leaves behind: marks between phases and the exchanges of gradients, unread stamps."""

from dataclasses import dataclass, field
from typing import Literal

from gradwire.timing.clock import Stamp

# A mark says which phase begins at its stamp.
Phase = Literal["data_wait", "forward", "backward", "tail", "optimizer", "pause", "other", "untraced"]


@dataclass(slots=True)
class BucketStamps:
    """One bucket as the exchange reported it; stamps are of the session's clock."""

    index: int
    ready: Stamp
    done: Stamp
    codec: tuple[tuple[Stamp, Stamp, str], ...]
    logical_bytes: int
    wire_bytes: int


@dataclass(slots=True)
class SyncTrace:
    """One exchange of all buckets."""

    number: int
    # False for one of which only the number is kept.
    is_traced: bool = True
    end_of_backward: Stamp | None = None
    buckets: list[BucketStamps] = field(default_factory=list)


@dataclass(slots=True)
class StepTrace:
    """One step from one `session.step()` to the next."""

    step: int
    epoch: int
    codec: str
    is_settling: bool
    marks: list[tuple[Phase, Stamp]]
    end: Stamp
    started_at: float  # wall clock, Unix seconds
    agent_seconds: float
    samples: int
    tokens: int
    syncs: list[SyncTrace]
    # Whether it belongs to a check window.
    is_check: bool = False
    # False for a step of which only its length and its pauses are known.
    is_traced: bool = True

    def last_sync(self) -> int:
        """Return the number of the step's last exchange, 0 if it had none."""
        return self.syncs[-1].number if self.syncs else 0

    def stamps(self) -> list[Stamp]:
        """Return the stamps that must be ready before the step can be read."""
        stamps = [self.end]
        stamps += [bucket.done for sync in self.syncs for bucket in sync.buckets]
        return stamps
