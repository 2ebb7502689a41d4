"""How long to wait after a failure."""

import random


class Backoff:
    """Doubling delays with jitter, so that a thousand nodes do not come back in one instant."""

    def __init__(self, first_seconds: float = 0.5, most_seconds: float = 10.0) -> None:
        self._first_seconds = first_seconds
        self._most_seconds = most_seconds
        self.num_failures = 0

    def fail(self) -> float:
        """Count a failure and return how long to wait, seconds: between half and all of the present delay."""
        # The exponent is bounded: a server may be away for weeks.
        delay = min(self._most_seconds, self._first_seconds * 2.0 ** min(self.num_failures, 20))
        self.num_failures += 1
        return delay * random.uniform(0.5, 1.0)

    def succeed(self) -> None:
        """Begin anew with the shortest delay."""
        self.num_failures = 0
