"""Clocks: a stamp is taken in the step and read later, outside it.

On CPU a stamp is the monotonic time itself. On CUDA it is an event recorded on the current stream, so that a phase
lasts as long as the device needed for it; nothing is synchronised inside the step, and only the recorder's thread
reads events.
"""

import time
from typing import Any, Protocol

import torch

Stamp = Any


class Clock(Protocol):
    """Takes stamps now and turns them into seconds later."""

    def stamp(self) -> Stamp:
        """Return a mark of this moment; costs about a microsecond and never synchronises."""

    def is_ready(self, stamp: Stamp) -> bool:
        """Say whether `seconds` can answer without waiting."""

    def seconds(self, stamp: Stamp) -> float:
        """Return the stamp's time in seconds on the monotonic clock of this process."""


class MonotonicClock:
    """The clock for models on CPU."""

    def stamp(self) -> float:
        """Return the monotonic time, seconds."""
        return time.perf_counter()

    def is_ready(self, stamp: float) -> bool:
        """A number is always ready."""
        return True

    def seconds(self, stamp: float) -> float:
        """Return the stamp itself."""
        return stamp


class CudaClock:
    """The clock for models on a CUDA device: events, tied once to the monotonic clock; one event per stamp."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reference = torch.cuda.Event(enable_timing=True)
        # Attach is outside every step, so waiting is allowed here and only here.
        torch.cuda.synchronize(device)
        self._reference.record(torch.cuda.current_stream(device))
        self._reference.synchronize()
        self._reference_seconds = time.perf_counter()

    def stamp(self) -> torch.cuda.Event:
        """Record an event on the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def is_ready(self, stamp: torch.cuda.Event) -> bool:
        """Ask the driver without waiting; `seconds` is only called after this said yes."""
        return bool(stamp.query())

    def seconds(self, stamp: torch.cuda.Event) -> float:
        """Return reference time plus the device's own measure since then."""
        return self._reference_seconds + float(self._reference.elapsed_time(stamp)) / 1e3


def clock_for(device: torch.device) -> Clock:
    """Return the clock that tells how long work on `device` takes."""
    return CudaClock(device) if device.type == "cuda" else MonotonicClock()
