"""What this rank wants of all ranks until the next pulse took it along."""

import threading

from gradwire.steering.pulse import GUARD_ROLLBACK, NO_ROLLBACK


class Wish:
    """The strongest of what was asked for; any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kind, self._reason = NO_ROLLBACK, ""

    def ask(self, kind: int, reason: str) -> None:
        """Ask for a kind of rollback; a weaker one than is asked for already is dropped."""
        with self._lock:
            if kind > self._kind:
                self._kind, self._reason = kind, reason

    @property
    def kind(self) -> int:
        """What is asked for, `NO_ROLLBACK` if nothing is."""
        with self._lock:
            return self._kind

    def take(self, most: int = GUARD_ROLLBACK) -> str:
        """Return the reason, and ask for nothing any more; a wish above `most` waits for the next pulse."""
        with self._lock:
            if self._kind > most:
                return ""
            reason, self._kind, self._reason = self._reason, NO_ROLLBACK, ""
            return reason
