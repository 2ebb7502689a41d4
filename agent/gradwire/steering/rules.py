"""The guard's rules: each takes one number after another and says when it has had enough of them."""

import math
import statistics
from collections import deque
from typing import Protocol

# A single overflow is what GradScaler is for; three in a row are not.
NONFINITE_STEPS = 3

# One bad batch is no spike.
SPIKE_STEPS = 5
# Losses that the scale rests on, and how many it takes to have one.
_SPIKE_MEMORY = 128
SPIKE_MIN_LOSSES = 32
# So many robust standard deviations above the median is no scatter of healthy training ...
_SPIKE_DEVIATIONS = 10.0
# ... and where losses hardly scatter, a rise by less than a tenth is none either.
_LEAST_DEVIATION = 0.01
# The median absolute deviation of a normal distribution, times this, is its standard deviation.
_MAD_TO_DEVIATION = 1.4826
# The scale moves slowly, and medians of every step would cost more than all else.
_SCALE_EVERY = 8

# A sample tells of some tensors; three in a row tell of the run.
MATCH_SAMPLES = 3
MATCH_MIN_SAMPLES = 8
_MATCH_MEMORY = 512


class Rule(Protocol):
    """Not thread-safe."""

    def observe(self, step: int, value: float) -> str | None:
        """Take the value of `step`; return the sentence that says why it has had enough, once."""

    def begin_epoch(self) -> None:
        """Forget what a switch makes void."""


class Nonfinite:
    """Some values in a row that are not finite."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    def observe(self, step: int, value: float) -> str | None:
        """See `Rule`."""
        self._count = 0 if math.isfinite(value) else self._count + 1
        if self._count != NONFINITE_STEPS:
            return None
        return f"the {self._what} was not finite for {NONFINITE_STEPS} steps in a row, up to step {step}"

    def begin_epoch(self) -> None:
        """See `Rule`."""
        self._count = 0


class Spike:
    """Losses far above what they were, measured by how much they scatter; losses from before the switch count."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_SPIKE_MEMORY)
        self._median = self._limit = math.inf
        self._num_since_scale = 0
        self._count = 0

    def observe(self, step: int, value: float) -> str | None:
        """See `Rule`."""
        if not math.isfinite(value):
            # That is another rule's.
            return None
        if value <= self._limit:
            self._count = 0
            self._learn(value)
            return None
        self._count += 1
        if self._count < SPIKE_STEPS:
            return None
        sentence = (
            f"the loss was above {self._limit:.4g} for {SPIKE_STEPS} steps in a row, up to step {step}; "
            f"its median before was {self._median:.4g}"
        )
        # What comes after is measured by itself: an uncompressed training may go on at a new level.
        self._usual.clear()
        self._median = self._limit = math.inf
        self._count = 0
        return sentence

    def begin_epoch(self) -> None:
        """See `Rule`."""
        self._count = 0

    def _learn(self, value: float) -> None:
        self._usual.append(value)
        self._num_since_scale += 1
        if len(self._usual) < SPIKE_MIN_LOSSES or self._num_since_scale < _SCALE_EVERY:
            return
        self._num_since_scale = 0
        self._median = statistics.median(self._usual)
        mad = statistics.median(abs(one - self._median) for one in self._usual)
        deviation = max(_MAD_TO_DEVIATION * mad, _LEAST_DEVIATION * abs(self._median))
        self._limit = self._median + _SPIKE_DEVIATIONS * deviation


class MatchDrop:
    """Gradient match below half of its own median since the switch."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_MATCH_MEMORY)
        self._count = 0

    def observe(self, step: int, value: float) -> str | None:
        """See `Rule`."""
        if len(self._seen) < MATCH_MIN_SAMPLES:
            self._seen.append(value)
            return None
        median = statistics.median(self._seen)
        # A median that is not positive has no half to fall below: healthy values around it would.
        if median <= 0 or value >= median / 2:
            self._count = 0
            self._seen.append(value)
            return None
        self._count += 1
        if self._count != MATCH_SAMPLES:
            return None
        return (
            f"the gradient match was below half of its median since the switch, {median:.3g}, "
            f"in {MATCH_SAMPLES} samples in a row, up to step {step}"
        )

    def begin_epoch(self) -> None:
        """See `Rule`."""
        self._seen.clear()
        self._count = 0
