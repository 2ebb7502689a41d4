"""Counters of live runs, kept in memory so that a scrape never waits for the database.

They count what this process ingested since its start: sums over ranks, whose ratios and rates stay right under any
aggregation. A run that was not heard of for `FORGET_SECONDS`, or ended that long ago, is forgotten; if it comes
back it starts from 0, which `rate()` takes for the reset that it is.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from gradwire_protocol import limits
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import AttemptEnded, AttemptStarted, StepWindow, Switched
from sqlalchemy import Connection, select

from gradwire_server.database.tables import attempts, runs

# Series of ended and lost runs leave after this long, seconds: long enough for a scrape a minute to see them end.
FORGET_SECONDS = 300.0

# About thirty series a run: a scrape stays below a megabyte.
MAX_RUNS = 200


@dataclass
class RunCounters:
    """What one run has added up; keys of `sums` are metric and label value."""

    project: str = ""
    name: str = ""
    codec: str = ""
    sums: Counter[tuple[str, str]] = field(default_factory=Counter)
    # Bytes and steps are integers of any size; a float would lose digits from 2^53 on.
    counts: Counter[str] = field(default_factory=Counter)
    rollbacks: Counter[str] = field(default_factory=Counter)
    nominal_bytes_per_second: float | None = None
    measured_bytes_per_second: float | None = None
    num_applied_ranks: int | None = None
    attempt: str = ""
    # Streams of the newest attempt that were heard of, and those of them that ended.
    streams: set[tuple[str, int]] = field(default_factory=set)
    ended: set[tuple[str, int]] = field(default_factory=set)
    heard_at: float = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether every stream of the newest attempt said its last word."""
        return bool(self.streams) and self.streams == self.ended

    def is_live(self, now: float) -> bool:
        """Whether the run is heard of and has not ended."""
        return not self.has_ended and now - self.heard_at <= limits.LOST_AFTER_SECONDS


class Counters:
    """The counters of this process; `add` and `snapshot` may be called from any thread."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._runs: dict[str, RunCounters] = {}
        # Facts of runs that began before this process: their streams do not tell them again.
        self._known: dict[str, RunCounters] = {}
        self._num_overflowed_batches = 0

    def load(self, connection: Connection) -> None:
        """Learn the facts of runs that are under way. Cost: one query, at the start of the process."""
        statement = (
            select(runs.c.id, runs.c.project, runs.c.name, attempts.c.id, attempts.c.facts)
            .join(attempts, attempts.c.id == runs.c.current_attempt)
            .where(runs.c.final_status.is_(None))
            .order_by(runs.c.last_seen_at.desc())
            .limit(MAX_RUNS)
        )
        for run, project, name, attempt, stored in connection.execute(statement):
            facts = msgspec.convert(stored, AttemptStarted)
            self._known[run] = RunCounters(
                project=project,
                name=name,
                attempt=attempt,
                nominal_bytes_per_second=facts.link.nominal_bytes_per_second,
            )

    def add(self, batch: Batch) -> None:
        """Count a batch that was stored, exactly once; of one from a dead process, only that its stream ended."""
        with self._lock:
            if batch.is_late:
                self._end_late(batch)
                return
            run = self._find(batch)
            if run is None:
                self._num_overflowed_batches += 1
                return
            run.heard_at = self._now()
            stream = (batch.model, batch.node)
            if batch.attempt == run.attempt:
                run.streams.add(stream)
            for record in batch.records:
                if isinstance(record, StepWindow):
                    _add_window(run, record, batch.node)
                elif isinstance(record, Switched):
                    _add_switch(run, record)
                elif isinstance(record, AttemptEnded) and batch.attempt == run.attempt:
                    run.ended.add(stream)

    def snapshot(self) -> tuple[dict[str, RunCounters], int]:
        """Return the runs that are not forgotten, by id, and the number of batches that overflowed.

        The runs are copies; the caller may keep them.
        """
        with self._lock:
            self._forget()
            copies = {
                run: RunCounters(
                    **{
                        **vars(counters),
                        "sums": counters.sums.copy(),
                        "counts": counters.counts.copy(),
                        "rollbacks": counters.rollbacks.copy(),
                        "streams": counters.streams.copy(),
                        "ended": counters.ended.copy(),
                    }
                )
                for run, counters in self._runs.items()
            }
            return copies, self._num_overflowed_batches

    def _end_late(self, batch: Batch) -> None:
        """End a stream whose last word its process could not deliver; rates of now are left alone."""
        run, stream = self._runs.get(batch.run), (batch.model, batch.node)
        if run is None or batch.attempt != run.attempt or stream not in run.streams:
            return
        if any(isinstance(record, AttemptEnded) for record in batch.records):
            run.ended.add(stream)

    def _find(self, batch: Batch) -> RunCounters | None:
        run = self._runs.get(batch.run)
        if run is None:
            self._forget()
            if len(self._runs) >= MAX_RUNS and not self._evict():
                return None
            run = self._known.pop(batch.run, None) or RunCounters(attempt=batch.attempt)
            self._runs[batch.run] = run
        for record in batch.records:
            if isinstance(record, AttemptStarted):
                _begin(run, batch.attempt, record)
        return run

    def _forget(self) -> None:
        oldest = self._now() - FORGET_SECONDS
        for run in [run for run, counters in self._runs.items() if counters.heard_at < oldest]:
            del self._runs[run]

    def _evict(self) -> bool:
        """Make room for a live run by forgetting one that ended; return whether there was one."""
        ended = [(counters.heard_at, run) for run, counters in self._runs.items() if counters.has_ended]
        if not ended:
            return False
        del self._runs[min(ended)[1]]
        return True


def _begin(run: RunCounters, attempt: str, facts: AttemptStarted) -> None:
    run.project, run.name = facts.project, facts.run_name
    if run.attempt != attempt or not run.streams:
        run.attempt = attempt
        run.streams, run.ended = set(), set()
        run.num_applied_ranks = facts.world_size
    if facts.link.nominal_bytes_per_second is not None:
        run.nominal_bytes_per_second = facts.link.nominal_bytes_per_second


def _add_switch(run: RunCounters, switched: Switched) -> None:
    run.num_applied_ranks = switched.num_ranks
    run.codec = switched.plan.codec
    if switched.is_rollback:
        run.rollbacks[switched.cause] += 1


def _add_window(run: RunCounters, window: StepWindow, node: int) -> None:
    seconds = window.seconds
    if not window.is_check:
        # The uncompressed steps of a check window are no change of codec.
        run.codec = window.codec
    added = {
        ("step", ""): seconds.step,
        ("pause", ""): seconds.pause,
        ("compute", "forward"): seconds.forward,
        ("compute", "backward"): seconds.backward,
        ("comm", "overlapped"): seconds.overlapped,
        ("codec", "encode"): seconds.encode,
        ("codec", "decode"): seconds.decode,
    }
    if seconds.exposed_transfer is None or seconds.straggler_wait is None:
        # The kinds always add up to all communication, so that its ratio to computation needs no split.
        added["comm", "exposed_unsplit"] = seconds.exposed_communication
    else:
        added["comm", "exposed_transfer"] = seconds.exposed_transfer
        added["comm", "straggler_wait"] = seconds.straggler_wait
        added["split_training", ""] = max(0.0, seconds.step - seconds.pause)
    run.sums.update(added)
    run.counts.update(
        tokens=window.tokens,
        samples=window.samples,
        wire_bytes=window.wire_bytes,
        logical_bytes=window.logical_bytes,
        rank_steps=window.num_rank_steps,
        # Every node reports the same steps; the node of rank 0 counts them.
        steps=window.num_steps if node == 0 else 0,
    )
    moving = seconds.exposed_communication + seconds.overlapped - (seconds.straggler_wait or 0.0)
    run.measured_bytes_per_second = window.wire_bytes / moving if moving > 0 and window.wire_bytes else None
