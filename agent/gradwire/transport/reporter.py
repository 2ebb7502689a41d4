"""The seam between training and transport: what a rank hands over, and what became of it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from gradwire_protocol.records import AttemptEnded, Record, Result
from msgspec import Struct


class DeliverySummary(Struct, frozen=True, kw_only=True):
    """What became of everything a rank reported.

    Each number counts measurements: a window, an event or a single value of a metric is one. On ranks other than
    the node's first, "delivered" means taken by the node's first rank.
    """

    num_delivered: int = 0
    num_undelivered: int = 0
    num_dropped: int = 0
    # Where the undelivered ones wait for `gradwire sync`; None when nothing waits.
    spool_path: Path | None = None


class Reporter(Protocol):
    """Takes records from any thread of a rank; never blocks, never raises, and is silent in a forked child."""

    def report(self, record: Record, *, urgent: bool = False) -> None:
        """Hand over a record; ownership passes, do not change it afterwards.

        Args:
            record: Windows of a node's ranks with equal steps, epoch and codec are merged; others pass unchanged.
            urgent: Send at once instead of with the next batch; events, results, start and end always are.
        """
        ...

    def report_loss(self, steps: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> None:
        """Hand over this rank's losses.

        Args:
            steps: Ascending steps.
            values: Loss by step; non-finite ones are kept as such.
            weights: What each value counts in the mean over the node's ranks, usually samples or tokens; >= 0.
        """
        ...

    def announce(self, result: Result) -> None:
        """Tell a waiting `gradwire rollback --local` how it went, without reporting the record to the server.

        For ranks other than the one that reports the result itself; `report` of a result implies it.
        """
        ...

    def close(self, ended: AttemptEnded | None, timeout_seconds: float) -> DeliverySummary:
        """Deliver what is left and stop; blocks for at most `timeout_seconds`, less when the server is known dead.

        Args:
            ended: Becomes the last record of the node's stream; the worst status of the node's ranks wins.
            timeout_seconds: What is not delivered by then stays in the spool.
        """
        ...
