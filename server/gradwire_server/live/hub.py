"""Wakes whoever waits for news of a run; the news itself is read from the database.

A wake-up carries no content, so a slow reader costs a flag and not a queue, and nothing is lost: the reader asks
the tables for what is newer than what it has.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

# "data": windows or points arrived. "event": the run's history grew. "directive": somebody asked for a change.
Topic = Literal["data", "event", "directive"]


class Subscription:
    """One waiting reader: the topics it wants, and the runs with news since it last looked."""

    def __init__(self, topics: frozenset[Topic]) -> None:
        self.topics = topics
        self.is_closed = False
        self._news: dict[str, set[Topic]] = {}
        self._wake = asyncio.Event()

    def notify(self, run: str, topics: frozenset[Topic]) -> None:
        """Note the topics that concern this reader and wake it."""
        wanted = topics & self.topics
        if wanted:
            self._news.setdefault(run, set()).update(wanted)
            self._wake.set()

    def close(self) -> None:
        """Wake the reader for the last time."""
        self.is_closed = True
        self._wake.set()

    async def wait(self, seconds: float) -> dict[str, set[Topic]]:
        """Return topics by run as soon as there are any; empty after `seconds`, or at once when closed."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return {}
        self._wake.clear()
        if self.is_closed:
            self._wake.set()
        news, self._news = self._news, {}
        return news


class Hub:
    """Fan-out inside one process. All methods but `publish` belong to the event loop's thread."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # By the run that is listened to; None holds those who listen to all.
        self._subscriptions: defaultdict[str | None, set[Subscription]] = defaultdict(set)
        self._watchers: Counter[str] = Counter()
        self._is_closed = False

    def open(self) -> None:
        """Bind to the running event loop."""
        self._loop = asyncio.get_running_loop()

    def publish(self, run: str, *topics: Topic) -> None:
        """Say that there is news; from any thread, after the commit that makes it readable."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._fan_out, run, frozenset(topics))

    def _fan_out(self, run: str, topics: frozenset[Topic]) -> None:
        for key in (run, None):
            for subscription in self._subscriptions.get(key, ()):
                subscription.notify(run, topics)

    @contextmanager
    def subscribe(self, run: str | None, *topics: Topic) -> Iterator[Subscription]:
        """Receive news of one run, or of all with None, while the context is open."""
        subscription = Subscription(frozenset(topics))
        if self._is_closed:
            subscription.close()
        self._subscriptions[run].add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[run].discard(subscription)
            if not self._subscriptions[run]:
                del self._subscriptions[run]

    @contextmanager
    def watch(self, run: str) -> Iterator[None]:
        """Count somebody who looks at the run while the context is open."""
        self._watchers[run] += 1
        try:
            yield
        finally:
            self._watchers[run] -= 1
            if not self._watchers[run]:
                del self._watchers[run]

    def num_watchers(self, run: str) -> int:
        """Return how many live streams of the run are open."""
        return self._watchers[run]

    def num_subscriptions(self) -> int:
        """Return how many readers wait, live streams and agents together."""
        return sum(len(subscriptions) for subscriptions in self._subscriptions.values())

    def close(self) -> None:
        """End every wait, now and later, so that open streams do not hold up the server's stop."""
        self._is_closed = True
        for subscriptions in self._subscriptions.values():
            for subscription in subscriptions:
                subscription.close()
