"""Check windows: a few uncompressed steps now and then while compressed, to see what compression saves in this run.

Rank 0 keeps the account and asks for a window in its pulse; all ranks begin it at the same exchange and count it
down themselves. What the codec owes is held meanwhile: neither added nor dropped.
"""

import math
from collections import deque

from gradwire_compression import Exchange

from gradwire.steering.cadence import blended, capped
from gradwire.steering.member import Member
from gradwire.timing.sums import bytes_saved_ratio
from gradwire.timing.trace import SyncTrace

# Uncompressed steps of a window, and the first ones after each change that comparisons leave out.
CHECK_STEPS = 20
SETTLING_STEPS = 2

# Compressed exchanges between windows, in windows: one to compare with the window before, one for the next.
_WINDOWS_BETWEEN = 2
# Steps vary; a window that takes this much longer than expected stays within the budget.
_MARGIN = 1.25
# Exchanges of one step that a window allows for: gradients may be accumulated with an exchange for each part.
_MAX_SYNCS_PER_STEP = 32
# Windows whose steps are remembered: a loss is read some steps late at most.
_NUM_REMEMBERED = 64


class Budget:
    """The time spent in windows against the time compressed; exists on every rank, counts on rank 0.

    Args:
        share: Of the time compressed that windows may take; 0 for no windows.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        # Mean seconds of an exchange by codec in use, "" for those of a window.
        self._means: dict[str, float] = {}
        self._last: tuple[float, str] | None = None
        self.compressed_seconds = 0.0
        self.check_seconds = 0.0
        # Compressed exchanges since the codec changed or a window ended.
        self._num_compressed = 0

    def tick(self, now: float, codec: str, *, is_checking: bool) -> None:
        """Note that an exchange begins at `now`, monotonic seconds, with `codec`, "none" if exact."""
        if codec == "none" and not is_checking:
            # Nothing is spent, and there is nothing to compare with.
            self._last, self._num_compressed = None, 0
            return
        kind = "" if is_checking else codec
        if self._last is not None:
            self._spend(now - self._last[0], self._last[1])
            if kind != self._last[1]:
                self._num_compressed = 0
        self._last = now, kind

    def allows(self, num_exchanges: int, wire_ratio: float) -> bool:
        """Return whether a window of so many exchanges may begin now.

        Args:
            num_exchanges: All of the window's.
            wire_ratio: Bytes that exact exchanges send over those that are sent now. An uncompressed step cannot be
                longer than a compressed one by more than that, whatever communication takes of it.
        """
        if self._last is None or self._num_compressed < _WINDOWS_BETWEEN * (num_exchanges + SETTLING_STEPS):
            return False
        exact = self._means.get("", self._means[self._last[1]] * wire_ratio)
        spent = self.check_seconds + _MARGIN * num_exchanges * exact
        return spent <= self._share * (self.check_seconds + self.compressed_seconds)

    def _spend(self, seconds: float, kind: str) -> None:
        mean = self._means.get(kind)
        seconds = capped(seconds, mean)
        self._means[kind] = blended(mean, seconds)
        if kind == "":
            self.check_seconds += seconds
        else:
            self.compressed_seconds += seconds
            self._num_compressed += 1


class Checks:
    """The windows of one model, as every rank sees them; used in the exchange's hooks but where noted."""

    def __init__(self, share: float) -> None:
        self._budget = Budget(share)
        self._is_on = False
        # First step that does not settle any more, after the last window began or ended.
        self._settled_step = 0
        self._covered: deque[tuple[int, float]] = deque(maxlen=_NUM_REMEMBERED)

    @property
    def is_on(self) -> bool:
        """Whether this step belongs to a window."""
        return self._is_on

    def is_settling(self, step: int) -> bool:
        """Return whether `step` is one of the first after a window began or ended."""
        return step < self._settled_step

    def covers(self, step: int) -> bool:
        """Return whether `step` belongs to a window; any thread."""
        return any(first <= step <= last for first, last in tuple(self._covered))

    def begin(self, exchange: Exchange, num_exchanges: int) -> None:
        """Begin the window that rank 0 asked for; inside `Observer.begin_sync`, at the same step on all ranks."""
        # A switch may have come in between; all ranks see it alike.
        if exchange.plan.codec != "none" and not exchange.is_settling and not exchange.is_held:
            exchange.hold(num_exchanges)

    def tick(self, exchange: Exchange, now: float, step: int, codec: str) -> None:
        """Note where this exchange belongs, after all that may change it.

        Args:
            exchange: In its `begin_sync`.
            now: Monotonic seconds.
            step: In progress.
            codec: In use, "none" if exact.
        """
        if exchange.is_held != self._is_on:
            self._is_on = exchange.is_held
            self._settled_step = step + SETTLING_STEPS
            if self._is_on:
                self._covered.append((step, math.inf))
            else:
                self._covered.append((self._covered.pop()[0], step - 1))
        self._budget.tick(now, codec, is_checking=self._is_on)

    def wanted(self, exchange: Exchange, newest: SyncTrace | None, member: Member, syncs_per_step: float) -> int:
        """Return of how many exchanges a window should be that begins now, 0 for none; rank 0's word counts.

        Args:
            exchange: In its `end_sync`.
            newest: The newest traced exchange, None before there is one.
            member: This rank.
            syncs_per_step: Exchanges of a step, as far as is known.
        """
        if newest is None or member.rank > 0 or member.world_size == 1:
            return 0
        if exchange.is_held or exchange.is_settling or not 0 < syncs_per_step < _MAX_SYNCS_PER_STEP:
            return 0
        num_exchanges = CHECK_STEPS * max(1, round(syncs_per_step))
        ratio = bytes_saved_ratio(newest, member.world_size)
        return num_exchanges if self._budget.allows(num_exchanges, ratio) else 0
