"""The cadence: which exchanges carry a pulse, and when rank 0 ends a window."""

import math

# A pulse costs some 2 ms where its ranks share cores with all else that they do: five a second were 1 % of the time
# and more, two are less than half a per cent and still switch within half a second.
PULSE_SECONDS = 0.5
WINDOW_SECONDS = 1.0

# Weight of the newest exchange in the running mean of the time between exchanges.
_NEWEST_WEIGHT = 0.1


def capped(seconds: float, mean: float | None) -> float:
    """Return the seconds of one exchange: a long pause between two exchanges is not a long step."""
    return seconds if mean is None else min(seconds, 4 * mean)


def blended(mean: float | None, seconds: float) -> float:
    """Return the running mean with one exchange more."""
    return seconds if mean is None else mean + _NEWEST_WEIGHT * (seconds - mean)


class Cadence:
    """Counts exchanges; all ranks agree because they learn the interval from the pulse itself."""

    def __init__(self) -> None:
        self._next_pulse = 1
        self._mean_seconds: float | None = None
        self._last_tick: float | None = None
        self._window_began = 0.0

    def tick(self, now: float) -> None:
        """Note that an exchange begins at `now`, monotonic seconds."""
        if self._last_tick is not None:
            mean = self._mean_seconds
            self._mean_seconds = blended(mean, capped(now - self._last_tick, mean))
        else:
            self._window_began = now
        self._last_tick = now

    def is_due(self, sync: int) -> bool:
        """Say whether exchange `sync` carries a pulse."""
        return sync >= self._next_pulse

    def agree(self, sync: int, interval: int) -> None:
        """Put the next pulse `interval` exchanges after `sync`, the one that carried the last pulse."""
        self._next_pulse = sync + max(1, interval)

    def wanted_interval(self, economy: int = 1) -> int:
        """Return how many exchanges should lie between pulses; rank 0's word counts.

        Args:
            economy: So many times as rare they become, up to a window's length.
        """
        if not self._mean_seconds:
            return 1
        seconds = min(PULSE_SECONDS * economy, max(PULSE_SECONDS, WINDOW_SECONDS))
        return max(1, math.ceil(seconds / self._mean_seconds))

    def closes_window(self, now: float) -> bool:
        """Say whether the window has lasted long enough, and begin the next one if so."""
        if now - self._window_began < WINDOW_SECONDS:
            return False
        self._window_began = now
        return True
