"""The bounded queue between training and the agent's threads."""

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

# Measurements that may wait in memory; the thread behind takes them within milliseconds unless the machine hangs.
CAPACITY = 50_000
_RESERVE = 1_000


class Inbox(Generic[T]):
    """Takes items from any thread without waiting; what does not fit is counted, newest first to go."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        # Reentrant, because a signal handler may report while the same thread is reporting.
        self._lock = threading.RLock()
        self._items: list[tuple[T, int]] = []
        self._weight = 0
        self._num_dropped = 0

    def put(self, item: T, weight: int, *, may_use_reserve: bool = False) -> None:
        """Add an item that holds `weight` measurements, or count them as dropped."""
        with self._lock:
            capacity = CAPACITY + (_RESERVE if may_use_reserve else 0)
            if self._weight + weight > capacity:
                self._num_dropped += weight
                return
            self._items.append((item, weight))
            self._weight += weight
            is_first = len(self._items) == 1
        if is_first:
            self._wake()

    def take_all(self) -> list[tuple[T, int]]:
        """Return the waiting items with their weights, oldest first, and forget them."""
        with self._lock:
            items, self._items, self._weight = self._items, [], 0
            return items

    def take_num_dropped(self) -> int:
        """Return how many measurements were dropped since the last call."""
        with self._lock:
            num_dropped, self._num_dropped = self._num_dropped, 0
            return num_dropped
