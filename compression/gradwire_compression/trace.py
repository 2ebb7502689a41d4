"""When a bucket was being encoded and decoded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Trace:
    """Collects the codec intervals of one bucket in one step."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        # (begin, end, "encode" or "decode"), stamps of the clock.
        self.intervals: list[tuple[float, float, str]] = []

    @contextmanager
    def measure(self, operation: str) -> Iterator[None]:
        """Note the time that the body takes."""
        begin = self._clock()
        yield
        self.intervals.append((begin, self._clock(), operation))
