"""The pulse: one small all-reduce by which every rank learns the same facts at the same step.

It takes the minimum over float64; maxima travel as negatives, and a value that must be equal travels twice, as
itself and as its negative. Every entry is finite or +inf for unknown: the minimum with a NaN depends on where the
NaN stands.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire.steering.side import Pending, Side

# Buckets whose durations travel; a model with more is compared on its first ones only, hence not at all.
MAX_BUCKETS = 256

# Why a rank asks everybody to go back to uncompressed, or only says that it would; the largest wins.
NO_ROLLBACK, GUARD_REPORT, LOCAL_ROLLBACK, GUARD_ROLLBACK = 0, 1, 2, 3

_NUM_FACTS = 23
# More than there ever are.
_MOST_RANKS = 1 << 24


@dataclass(frozen=True)
class Facts:
    """What one rank puts into the pulse."""

    newest_revision: int = 0
    epoch: int = 0
    plan_hash: int = 0
    layout_hash: int = 0
    sync: int = 0
    rollback: int = NO_ROLLBACK
    rollback_rank: int = -1
    is_stopping: bool = False
    # Only rank 0 says when windows close and how many exchanges lie between pulses.
    closes_window: bool = False
    interval: float = math.inf
    # The last complete exchange and the seconds each of its buckets took on this rank.
    durations_sync: int = 0
    durations: Sequence[float] = ()
    # Of the parameters last read, below 2**48; None for unknown.
    checksum: int | None = None
    # Exchanges of a check window that should begin, 0 for none; only rank 0 says so.
    check_exchanges: int = 0
    # One in so many steps should be traced.
    stride: int = 1


@dataclass(frozen=True)
class Agreement:
    """What all ranks know once the pulse is back."""

    newest_revision: int
    has_equal_plans: bool
    has_equal_layouts: bool
    rollback: int
    rollback_rank: int
    is_stopping: bool
    closes_window: bool
    interval: int
    durations_sync: int
    # None if the ranks spoke of different exchanges, or some rank did not know.
    least_durations: tuple[float, ...] | None
    # Whether all ranks read the same parameters; None if some rank does not know yet.
    has_equal_replicas: bool | None
    check_exchanges: int = 0
    # The largest that any rank asked for.
    stride: int = 1


def encode(facts: Facts) -> Tensor:
    """Return the rank's [_NUM_FACTS + MAX_BUCKETS] float64 entries."""
    durations = facts.durations
    # A single unknown would vanish in the minimum, so a rank that does not know all of them states none.
    if len(durations) > MAX_BUCKETS or not all(math.isfinite(value) for value in durations):
        durations = ()
    head = [
        -facts.newest_revision,
        *_both(facts.epoch),
        *_both(facts.plan_hash),
        *_both(facts.layout_hash),
        *_both(facts.sync),
        -facts.rollback,
        # The rank that counts is one of those with the strongest wish.
        -(facts.rollback * _MOST_RANKS + facts.rollback_rank),
        -int(facts.is_stopping),
        -int(facts.closes_window),
        facts.interval,
        *_both(facts.durations_sync),
        *_both(len(durations)),
        *_both(facts.checksum or 0),
        int(facts.checksum is not None),
        -facts.check_exchanges,
        -facts.stride,
    ]
    assert len(head) == _NUM_FACTS, "as many as are read"
    # To make a tensor of a list takes four times as long.
    entries = array("d", [*head, *durations, *[math.inf] * (MAX_BUCKETS - len(durations))])
    return torch.frombuffer(entries, dtype=torch.float64)


def decode(entries: Tensor) -> Agreement:
    """Read the minimum over all ranks."""
    values = entries[:_NUM_FACTS].tolist()
    num_buckets = _equal(values, 16)
    durations_sync = _equal(values, 14)
    least: tuple[float, ...] | None = None
    if num_buckets and durations_sync is not None:
        least = tuple(entries[_NUM_FACTS : _NUM_FACTS + int(num_buckets)].tolist())
    return Agreement(
        newest_revision=int(-values[0]),
        has_equal_plans=_equal(values, 1) is not None and _equal(values, 3) is not None,
        has_equal_layouts=_equal(values, 5) is not None and _equal(values, 7) is not None,
        rollback=int(-values[9]),
        rollback_rank=int(-values[10]) % _MOST_RANKS if values[9] < 0 else -1,
        is_stopping=values[11] < 0,
        closes_window=values[12] < 0,
        interval=int(values[13]) if math.isfinite(values[13]) else 1,
        durations_sync=int(durations_sync) if durations_sync is not None else 0,
        least_durations=least,
        has_equal_replicas=_equal(values, 18) is not None if values[20] == 1 else None,
        check_exchanges=int(-values[21]),
        stride=max(1, int(-values[22])),
    )


def _both(value: int) -> tuple[int, int]:
    return value, -value


def _equal(values: list[float], index: int) -> float | None:
    """Return the value that all ranks stated at `index`, None if they differ."""
    return values[index] if values[index] == -values[index + 1] else None


class Pulse:
    """One pulse at a time."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._entries: Tensor | None = None
        self._work: Pending | None = None

    @property
    def is_in_flight(self) -> bool:
        """True between `issue` and `await_result`."""
        return self._work is not None

    def issue(self, facts: Facts) -> None:
        """Send this rank's facts; does not wait."""
        assert self._work is None, "one pulse at a time"
        self._entries = encode(facts)
        self._work = self._side.start_min(self._entries)

    def await_result(self) -> Agreement:
        """Wait for the slowest rank to have issued the same pulse.

        Raises:
            RuntimeError: A rank is gone, or the group's time-out ran out.
        """
        assert self._work is not None, "no pulse was issued"
        assert self._entries is not None, "a pulse has entries"
        work, self._work = self._work, None
        work.wait()
        return decode(self._entries)
