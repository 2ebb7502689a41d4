"""What the agent says in the training's log: one line per kind of trouble, never a token, never an exception."""

import logging
import threading

_logger = logging.getLogger("gradwire")


class Notices:
    """Logs each kind once until it is taken back, so that a trouble of hours is one line, and its end another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def say(self, kind: str, message: str, *, error: BaseException | None = None) -> None:
        """Warn, unless this kind was said already; `error` adds its traceback."""
        with self._lock:
            if kind in self._said:
                return
            self._said.add(kind)
        _logger.warning("gradwire: %s", message, exc_info=error)

    def take_back(self, kind: str, message: str) -> None:
        """Tell that a trouble is over, if it was said; the next one is said again."""
        with self._lock:
            if kind not in self._said:
                return
            self._said.discard(kind)
        _logger.warning("gradwire: %s", message)
