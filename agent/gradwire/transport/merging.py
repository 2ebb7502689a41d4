"""One window per node from its ranks' windows, and one loss per step from its ranks' losses.

Ratios are formed by whoever reads the sums, so sums of sums stay right. A rank that is late or gone holds nothing
up for longer than `PATIENCE_SECONDS`; `num_rank_steps` then tells how many ranks a window speaks for.
"""

import math
import time
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from gradwire_protocol.records import Event, PhaseSeconds, Points, StepWindow
from msgspec import Struct
from msgspec.structs import asdict, replace

from gradwire.transport.batches import kind_of

PATIENCE_SECONDS = 3.0

# More steps than this waiting for a rank's loss are sent with the parts that are there.
_MAX_WAITING_STEPS = 10_000
# Finite steps after which a loss that is not is news again.
_FORGOTTEN_AFTER_STEPS = 100

_Key = tuple[int, int, int, str, bool, bool]


class _Waiting(Struct):
    """Windows of the same steps from some of the ranks."""

    due_at: float
    windows: dict[int, StepWindow]


class WindowMerger:
    """Collects the windows of a node's ranks; times are `time.monotonic` seconds."""

    def __init__(self, local_ranks: Sequence[int]) -> None:
        self._num_ranks = len(local_ranks)
        self._waiting: dict[_Key, _Waiting] = {}

    def add(self, rank: int, window: StepWindow, now: float) -> list[StepWindow]:
        """Take a rank's window and return the node's windows that are complete with it, mostly none or one."""
        kind = (window.epoch, window.codec, window.is_settling, window.is_check)
        key = (window.first_step, window.last_step, *kind)
        waiting = self._waiting.get(key)
        early = []
        if waiting is not None and rank in waiting.windows:
            # The same steps twice from one rank: two windows, rather than a sum nobody asked for.
            early = [self._merge(key)]
            waiting = None
        if waiting is None:
            waiting = self._waiting[key] = _Waiting(now + PATIENCE_SECONDS, {})
        waiting.windows[rank] = window
        is_complete = len(waiting.windows) >= self._num_ranks
        return [*early, self._merge(key)] if is_complete else early

    def take_due(self, now: float) -> list[StepWindow]:
        """Return the windows that waited long enough, with the ranks that are there; all for `now` = inf."""
        keys = [key for key, waiting in self._waiting.items() if waiting.due_at <= now]
        return [self._merge(key) for key in sorted(keys)]

    @property
    def next_due_at(self) -> float:
        """When the oldest window has waited long enough; inf when none waits."""
        return min((waiting.due_at for waiting in self._waiting.values()), default=math.inf)

    def _merge(self, key: _Key) -> StepWindow:
        windows = self._waiting.pop(key).windows
        return merge_windows([windows[rank] for rank in sorted(windows)])


class _Loss(Struct):
    """Parts of one step's loss."""

    due_at: float
    parts: dict[int, tuple[float, float]]


class _Ready:
    """Steps whose losses are merged: 40 bytes each, as there may be many before somebody takes them."""

    def __init__(self) -> None:
        self.steps = array("q")
        self.means, self.weights, self.lows, self.highs = (array("d") for _ in range(4))
        # Ranks whose loss is not finite, by step.
        self.spoiled: dict[int, tuple[int, ...]] = {}

    def add(self, step: int, parts: Mapping[int, tuple[float, float]]) -> None:
        """Merge one step's (value, weight) by rank."""
        finite = [value for value, _ in parts.values() if math.isfinite(value)]
        self.steps.append(step)
        self.means.append(weighted_mean(list(parts.values())))
        self.weights.append(sum(weight for _, weight in _usable(list(parts.values()))))
        self.lows.append(min(finite, default=math.nan))
        self.highs.append(max(finite, default=math.nan))
        if len(finite) < len(parts):
            self.spoiled[step] = tuple(sorted(rank for rank, (v, _) in parts.items() if not math.isfinite(v)))

    def points(self) -> Points:
        """Return the mean of each step over its ranks, with their spread and what it counts beside other nodes."""
        order = sorted(range(len(self.steps)), key=self.steps.__getitem__)
        means, weights, lows, highs = (
            [values[index] for index in order] for values in (self.means, self.weights, self.lows, self.highs)
        )
        return replace(
            points("loss", [self.steps[index] for index in order], means),
            lows=tuple(None if math.isnan(low) else low for low in lows),
            highs=tuple(None if math.isnan(high) else high for high in highs),
            weights=tuple(weights),
        )


class LossMerger:
    """Collects the losses of a node's ranks; times are `time.monotonic` seconds."""

    def __init__(self, local_ranks: Sequence[int]) -> None:
        self._num_ranks = len(local_ranks)
        self._waiting: dict[int, _Loss] = {}
        self._ready = _Ready()
        # Ranks whose loss was not finite last, and when.
        self._spoiled: tuple[int, ...] = ()
        self._spoiled_step = 0

    def add(
        self, rank: int, steps: Sequence[int], values: Sequence[float], weights: Sequence[float], now: float
    ) -> None:
        """Take a rank's losses; of lists that differ in length the shortest counts."""
        for step, value, weight in zip(steps, values, weights, strict=False):
            loss = self._waiting.setdefault(step, _Loss(now + PATIENCE_SECONDS, {}))
            loss.parts[rank] = (value, weight)
            if len(loss.parts) >= self._num_ranks:
                self._ready.add(step, self._waiting.pop(step).parts)

    def take(self, now: float) -> tuple[Points | None, list[Event]]:
        """Return the steps that are complete or waited long enough, all for `now` = inf; None if there is none.

        An event tells which ranks' losses are not finite, each time that these are others than in the last steps.
        """
        num_over = len(self._waiting) - _MAX_WAITING_STEPS
        due = [
            step
            for index, (step, loss) in enumerate(self._waiting.items())
            if index < num_over or loss.due_at <= now
        ]
        for step in due:
            self._ready.add(step, self._waiting.pop(step).parts)
        if not self._ready.steps:
            return None, []
        taken, self._ready = self._ready, _Ready()
        return taken.points(), list(self._tell_spoiled(taken.spoiled))

    def _tell_spoiled(self, taken: Mapping[int, tuple[int, ...]]) -> Iterator[Event]:
        for step, spoiled in sorted(taken.items()):
            # A loss that is not finite now and then is told once, and not each time.
            if spoiled != self._spoiled or step > self._spoiled_step + _FORGOTTEN_AFTER_STEPS:
                ranks = ", ".join(map(str, spoiled))
                yield Event(
                    at=time.time(),
                    step=step,
                    kind="loss_nonfinite",
                    message=f"the loss of rank {ranks} is not finite",
                    rank=spoiled[0],
                    level="warning",
                    data={"ranks": ",".join(map(str, spoiled))},
                )
            self._spoiled, self._spoiled_step = spoiled, step

    @property
    def has_ready(self) -> bool:
        """Whether `take` has something to return at once."""
        return bool(self._ready.steps)

    @property
    def next_due_at(self) -> float:
        """When the oldest step has waited long enough; inf when none waits."""
        oldest = next(iter(self._waiting.values()), None)
        return math.inf if oldest is None else oldest.due_at


def points(name: str, steps: Sequence[int], values: Sequence[float], *, is_evaluation: bool = False) -> Points:
    """Return a record of a metric in which non-finite values are named."""
    kinds: dict[str, Literal["nan", "+inf", "-inf"]] = {}
    for index, value in enumerate(values):
        kind = kind_of(value)
        if kind is not None:
            kinds[str(index)] = kind
    finite = tuple(None if str(index) in kinds else float(value) for index, value in enumerate(values))
    return Points(name=name, steps=tuple(steps), values=finite, kinds=kinds, is_evaluation=is_evaluation)


def weighted_mean(parts: Sequence[tuple[float, float]]) -> float:
    """Return the mean of (value, weight); NaN or an infinity if any value is, whatever its weight.

    Weights that are not positive and finite count nothing; if none counts, all count the same.
    """
    bad = {value for value, _ in parts if not math.isfinite(value)}
    if bad:
        return bad.pop() if bad in ({math.inf}, {-math.inf}) else math.nan
    usable = _usable(parts)
    largest = max(weight for _, weight in usable)
    total = sum(weight / largest for _, weight in usable)
    return sum(value * (weight / largest / total) for value, weight in usable)


def _usable(parts: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    usable = [(value, weight) for value, weight in parts if weight > 0 and math.isfinite(weight)]
    return usable or [(value, 1.0) for value, _ in parts]


def merge_windows(windows: Sequence[StepWindow]) -> StepWindow:
    """Return the sum over ranks of windows of the same steps; what one rank does not know, the sum does not."""
    first = windows[0]
    return StepWindow(
        first_step=first.first_step,
        last_step=first.last_step,
        num_steps=max(window.num_steps for window in windows),
        num_rank_steps=sum(window.num_rank_steps for window in windows),
        epoch=first.epoch,
        codec=first.codec,
        is_settling=first.is_settling,
        is_check=first.is_check,
        started_at=min(window.started_at for window in windows),
        wall_seconds=max(window.wall_seconds for window in windows),
        seconds=_add_seconds([window.seconds for window in windows]),
        unknown_reason="; ".join(dict.fromkeys(w.unknown_reason for w in windows if w.unknown_reason)),
        step_seconds_min=min(window.step_seconds_min for window in windows),
        step_seconds_max=max(window.step_seconds_max for window in windows),
        logical_bytes=sum(window.logical_bytes for window in windows),
        wire_bytes=sum(window.wire_bytes for window in windows),
        samples=sum(window.samples for window in windows),
        tokens=sum(window.tokens for window in windows),
        ranks=tuple(rank for window in windows for rank in window.ranks),
    )


def _add_seconds(parts: Sequence[PhaseSeconds]) -> PhaseSeconds:
    columns = [asdict(part) for part in parts]
    sums: dict[str, float | None] = {}
    for name in columns[0]:
        values = [column[name] for column in columns]
        sums[name] = None if None in values else sum(values)
    return PhaseSeconds(**sums)  # type: ignore[arg-type]
