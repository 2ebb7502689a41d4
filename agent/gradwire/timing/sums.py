"""Adds steps up into a window: marks become phase seconds, exchanges become exposed and overlapped seconds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_protocol.records import PhaseSeconds, RankSums, StepWindow

from gradwire.timing.clock import Clock
from gradwire.timing.exposure import BucketTrace, Exposure, expose, own_seconds
from gradwire.timing.trace import Phase, StepTrace, SyncTrace

# Why the least of the ranks' durations is not known; the run's page translates what it knows by these words.
NOT_COMPARED = "no step was compared across ranks"
NOT_TRACED = "no step was traced, so that measuring stays within its budget"


def bucket_traces(sync: SyncTrace, clock: Clock) -> list[BucketTrace]:
    """Read the stamps of one exchange, in bucket order."""
    return [
        BucketTrace(
            index=bucket.index,
            ready=clock.seconds(bucket.ready),
            done=clock.seconds(bucket.done),
            codec=tuple((clock.seconds(begin), clock.seconds(end), name) for begin, end, name in bucket.codec),
            logical_bytes=bucket.logical_bytes,
            wire_bytes=bucket.wire_bytes,
        )
        for bucket in sorted(sync.buckets, key=lambda bucket: bucket.index)
    ]


def own_durations(sync: SyncTrace, clock: Clock) -> list[float]:
    """Return each bucket's own communication seconds on this rank."""
    return own_seconds(bucket_traces(sync, clock))


def bytes_saved_ratio(sync: SyncTrace, world_size: int) -> float:
    """Return the bytes that an exact exchange of the same buckets sends over those that this rank sent."""
    sent = sum(bucket.wire_bytes for bucket in sync.buckets)
    exact = sum(exact_wire_bytes(bucket.logical_bytes, world_size) for bucket in sync.buckets)
    return exact / sent if sent else 1.0


# What is known of traced steps only.
_TRACED = (
    *("data_wait", "forward", "backward", "exposed_communication", "exposed_codec", "optimizer", "other"),
    *("overlapped", "encode", "decode"),
)


@dataclass
class _Split:
    """Exposed transfer and wait of the steps that were compared across ranks."""

    transfer: float = 0.0
    wait: float = 0.0
    num_steps: int = 0


class WindowSums:
    """The sums of one rank over consecutive steps of one kind (epoch, codec, settling or not, check or not)."""

    def __init__(self, first: StepTrace, rank: int, unknown_reason: str = "") -> None:
        self.kind = kind_of(first)
        self._rank = rank
        self._unknown_reason = unknown_reason
        self._seconds = PhaseSeconds()
        self._split = _Split()
        self._untraced_seconds, self._num_traced = 0.0, 0
        self._window = StepWindow(
            first_step=first.step,
            last_step=first.step,
            num_steps=0,
            num_rank_steps=0,
            epoch=first.epoch,
            codec=first.codec,
            is_settling=first.is_settling,
            is_check=first.is_check,
            started_at=first.started_at,
            step_seconds_min=float("inf"),
        )

    def add(self, trace: StepTrace, clock: Clock, transfers: Sequence[float] | None) -> None:
        """Add one step; `transfers` are the least durations over ranks of its last exchange, if compared."""
        phases, step_seconds = _phase_seconds(trace, clock)
        self._untraced_seconds += phases.pop("untraced")
        self._num_traced += trace.is_traced
        exposures = [
            self._expose(sync, clock, transfers if sync is trace.syncs[-1] else None) for sync in trace.syncs
        ]
        communication = sum(exposure.communication for exposure in exposures)
        codec = sum(exposure.codec for exposure in exposures)
        # The tail is what follows the last gradient: exposed communication and codec, and the rest of it is other.
        phases["other"] += max(0.0, phases.pop("tail") - communication - codec)
        seconds = self._seconds
        for name, value in phases.items():
            setattr(seconds, name, getattr(seconds, name) + value)
        seconds.step += step_seconds
        seconds.exposed_communication += communication
        seconds.exposed_codec += codec
        seconds.overlapped += sum(exposure.overlapped for exposure in exposures)
        seconds.encode += sum(exposure.encode for exposure in exposures)
        seconds.decode += sum(exposure.decode for exposure in exposures)
        seconds.agent += trace.agent_seconds
        self._window.wall_seconds += step_seconds
        self._count(trace, step_seconds - phases["pause"])

    def _expose(self, sync: SyncTrace, clock: Clock, transfers: Sequence[float] | None) -> Exposure:
        buckets = bucket_traces(sync, clock)
        self._window.logical_bytes += sum(bucket.logical_bytes for bucket in buckets)
        self._window.wire_bytes += sum(bucket.wire_bytes for bucket in buckets)
        if sync.end_of_backward is None:
            return Exposure()
        if transfers is not None and len(transfers) != len(buckets):
            transfers = None
        exposure = expose(buckets, clock.seconds(sync.end_of_backward), transfers)
        if exposure.transfer is not None and exposure.wait is not None:
            self._split.transfer += exposure.transfer
            self._split.wait += exposure.wait
            self._split.num_steps += 1
        return exposure

    def _count(self, trace: StepTrace, working_seconds: float) -> None:
        window = self._window
        window.last_step = trace.step
        window.num_steps += 1
        window.num_rank_steps += 1
        window.samples += trace.samples
        window.tokens += trace.tokens
        window.step_seconds_min = min(window.step_seconds_min, working_seconds)
        window.step_seconds_max = max(window.step_seconds_max, working_seconds)

    def close(self) -> StepWindow:
        """Return the window; these sums are not to be added to afterwards."""
        window, seconds, split = self._window, self._seconds, self._split
        if self._untraced_seconds:
            self._spread()
        if split.num_steps:
            # Exposed communication is known of every step, its split of the compared ones: these stand for all.
            compared = split.transfer + split.wait
            share = split.transfer / compared if compared else 1.0
            seconds.exposed_transfer = seconds.exposed_communication * share
            seconds.straggler_wait = seconds.exposed_communication - seconds.exposed_transfer
        else:
            window.unknown_reason = self._unknown_reason or (NOT_COMPARED if self._num_traced else NOT_TRACED)
        window.seconds = seconds
        window.ranks = (
            RankSums(rank=self._rank, step_seconds=seconds.step, straggler_wait_seconds=seconds.straggler_wait),
        )
        return window

    def _spread(self) -> None:
        """Let the traced steps of the window stand for all of them; what was paused is known of all."""
        window, seconds = self._window, self._seconds
        traced = seconds.step - seconds.pause - self._untraced_seconds
        if not self._num_traced or traced <= 0:
            seconds.other += self._untraced_seconds
            return
        factor = 1 + self._untraced_seconds / traced
        for name in _TRACED:
            setattr(seconds, name, factor * getattr(seconds, name))
        window.logical_bytes = window.logical_bytes * window.num_steps // self._num_traced
        window.wire_bytes = window.wire_bytes * window.num_steps // self._num_traced


def kind_of(trace: StepTrace) -> tuple[int, str, bool, bool]:
    """Return what all steps of a window have in common."""
    return trace.epoch, trace.codec, trace.is_settling, trace.is_check


def _phase_seconds(trace: StepTrace, clock: Clock) -> tuple[dict[str, float], float]:
    """Return seconds by phase and of the whole step; the phases add up to the step."""
    phases = dict.fromkeys(get_args(Phase), 0.0)
    times = [clock.seconds(stamp) for _, stamp in trace.marks] + [clock.seconds(trace.end)]
    for (phase, _), begin, end in zip(trace.marks, times, times[1:], strict=False):
        phases[phase] += max(0.0, end - begin)
    return phases, max(0.0, times[-1] - times[0])
