"""The recorder: one thread that turns traces into windows, so that the training thread only takes stamps.

Steps wait here until the ranks' durations of their exchange are known or passed by. Windows end where the pulse
says so, at the same step on every rank, and where the kind of step changes.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradwire_protocol.records import StepWindow

from gradwire.timing.clock import Clock, Stamp
from gradwire.timing.cost import OwnCost
from gradwire.timing.sums import WindowSums, kind_of, own_durations
from gradwire.timing.trace import StepTrace, SyncTrace

log = logging.getLogger("gradwire")

# Without the pulse nobody says where windows end; then they hold this many seconds.
WINDOW_SECONDS = 1.0
# Device stamps are asked for again after this long, seconds.
_RETRY_SECONDS = 0.05
# Steps are looked at with each pulse, and after this long if none comes. To wake a thread for every step would cost
# the training thread more than all its stamps together.
_LONGEST_SLEEP_SECONDS = 0.5


@dataclass(frozen=True)
class _Split:
    """The least own seconds over ranks of exchange `sync`, None if the ranks could not be compared."""

    sync: int
    transfers: Sequence[float] | None
    closes_window: bool


@dataclass(frozen=True)
class _Later:
    stamps: list[Stamp]
    job: Callable[[], None]


class Recorder:
    """Collects one rank's steps into windows on a thread of its own.

    Args:
        on_window: Called on the recorder's thread with each finished window.
        cost: Told what every window has cost; adds what the agent's threads have spent.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        rank: int,
        on_window: Callable[[StepWindow], None],
        cost: OwnCost | None = None,
    ) -> None:
        self._clock = clock
        self._rank = rank
        self._on_window = on_window
        self._cost = cost if cost is not None else OwnCost()
        self._messages: deque[StepTrace | SyncTrace | _Split | _Later | str | None] = deque()
        self._answer: tuple[SyncTrace | None, Sequence[float]] = (None, ())
        self._has_news = threading.Event()
        self._pending: deque[StepTrace] = deque()
        self._sums: WindowSums | None = None
        # Not empty while no pulse compares the ranks: steps are then folded as they come.
        self._uncompared_reason = ""
        self._window_started = 0.0
        self._thread = threading.Thread(target=self._run, name="gradwire-recorder", daemon=True)
        self._thread.start()

    def add(self, trace: StepTrace) -> None:
        """Hand over a finished step; never blocks."""
        self._messages.append(trace)

    def ask(self, sync: SyncTrace) -> None:
        """Have the stamps of a complete exchange read; never waits for them."""
        self._messages.append(sync)
        self._has_news.set()

    def durations_of(self, sync: SyncTrace) -> Sequence[float]:
        """Return each bucket's own seconds of an exchange that was asked for; empty while they are not known."""
        asked, durations = self._answer
        return durations if asked is sync else ()

    def later(self, stamps: list[Stamp], job: Callable[[], None]) -> None:
        """Call `job` on the recorder's thread once the device has passed `stamps`."""
        self._messages.append(_Later(stamps, job))
        self._has_news.set()

    def split(self, sync: int, transfers: Sequence[float] | None, *, closes_window: bool) -> None:
        """Say what the pulse found for exchange `sync`, and whether windows end with its step."""
        self._messages.append(_Split(sync, transfers, closes_window))
        self._has_news.set()

    def stop_comparing(self, reason: str) -> None:
        """From now on no pulse will compare the ranks: transfer and wait are unknown for `reason`."""
        self._messages.append(reason)
        self._has_news.set()

    def close(self, timeout_seconds: float) -> None:
        """Fold what is pending, finish the last window and end the thread."""
        self._messages.append(None)
        self._has_news.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            self._has_news.wait(_LONGEST_SLEEP_SECONDS)
            self._has_news.clear()
            while self._messages:
                message = self._messages.popleft()
                try:
                    if message is None:
                        self._fold_up_to(None, None)
                        self._close_window()
                        return
                    self._handle(message)
                except Exception:
                    log.exception("gradwire: a step could not be recorded; training is not affected")

    def _handle(self, message: StepTrace | SyncTrace | _Split | _Later | str) -> None:
        if isinstance(message, _Later):
            self._wait_until_ready(message.stamps)
            message.job()
        elif isinstance(message, SyncTrace):
            self._wait_until_ready([bucket.done for bucket in message.buckets])
            self._answer = (message, own_durations(message, self._clock))
        elif isinstance(message, StepTrace):
            self._wait_until_ready(message.stamps())
            self._pending.append(message)
            if self._uncompared_reason:
                self._fold_up_to(None, None)
                if self._clock_seconds(message) - self._window_started >= WINDOW_SECONDS:
                    self._close_window()
        elif isinstance(message, str):
            self._uncompared_reason = message
        else:
            self._fold_up_to(message.sync, message.transfers)
            if message.closes_window:
                self._close_window()

    def _fold_up_to(self, sync: int | None, transfers: Sequence[float] | None) -> None:
        """Fold pending steps whose last exchange is not after `sync` (None: all of them)."""
        while self._pending and (sync is None or self._pending[0].last_sync() <= sync):
            trace = self._pending.popleft()
            if self._sums is None or self._sums.kind != kind_of(trace):
                self._close_window()
                self._sums = WindowSums(trace, self._rank, self._uncompared_reason)
                self._window_started = self._clock_seconds(trace)
            is_compared = sync is not None and trace.last_sync() == sync
            self._sums.add(trace, self._clock, transfers if is_compared else None)

    def _close_window(self) -> None:
        if self._sums is not None:
            window, self._sums = self._sums.close(), None
            seconds = window.seconds
            seconds.agent += self._cost.take_thread_seconds()
            if not window.is_settling:
                self._cost.judge(seconds.agent, seconds.step - seconds.pause, window.num_steps)
            self._on_window(window)

    def _wait_until_ready(self, stamps: Sequence[Stamp]) -> None:
        """Wait on this thread until the device has passed the stamps."""
        pause = threading.Event()
        while not all(self._clock.is_ready(stamp) for stamp in stamps):
            pause.wait(_RETRY_SECONDS)

    def _clock_seconds(self, trace: StepTrace) -> float:
        return self._clock.seconds(trace.end)
