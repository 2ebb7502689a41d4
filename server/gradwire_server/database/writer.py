"""The one thread that writes, and its grouped commits."""

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError, OperationalError

from gradwire_server.errors import UnavailableError

T = TypeVar("T")

# Works that share one commit. A commit waits for the disk, a work takes about a millisecond: beyond this many, the
# first of the group waits longer for its neighbours than for the disk.
MAX_GROUP_WORKS = 128


@dataclass
class _Job:
    work: Callable[[Connection], Any]
    future: Future[Any] = field(default_factory=Future)
    result: Any = None
    error: Exception | None = None

    def starts(self) -> bool:
        """Return False when the caller has gone; from True on it cannot be cancelled any more."""
        return self.future.set_running_or_notify_cancel()

    def run(self, connection: Connection) -> None:
        """Run the work inside a savepoint, so that its failure leaves its neighbours alone.

        Raises:
            Exception: The work's own error, when the database undid the whole transaction with it, as SQLite does
                on a full disk: nothing of the group is stored then.
        """
        savepoint = connection.begin_nested()
        try:
            self.result = self.work(connection)
        except Exception as error:
            # Whatever a work raises belongs to its caller; the writer lives on.
            self.error = as_service_error(error)
            try:
                savepoint.rollback()
            except DBAPIError as gone:
                raise self.error from gone
        else:
            savepoint.commit()

    def finish(self, group_error: Exception | None) -> None:
        """Hand result or error to the caller; to be called after the commit only."""
        error = group_error or self.error
        if error is None:
            self.future.set_result(self.result)
        else:
            self.future.set_exception(error)


def as_service_error(error: Exception) -> Exception:
    """Return what the database says of itself (locked, full, gone) as `UnavailableError`, all else unchanged."""
    if not isinstance(error, OperationalError):
        return error
    unavailable = UnavailableError(f"the database does not answer: {error.orig}")
    unavailable.__cause__ = error
    return unavailable


class Writer:
    """Runs works one after another; many queued works share a transaction, each in a savepoint of its own.

    A future completes only after the commit of its group, so an answered write is on the disk. When the commit
    fails, every work of the group fails and nothing of it is stored.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._is_closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="gradwire-writer", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[Connection], T]) -> Future[T]:
        """Queue a work; its future may be cancelled until the work starts.

        Raises:
            UnavailableError: The writer is closed.
        """
        job = _Job(work)
        with self._lock:
            if self._is_closed:
                raise UnavailableError("the server is stopping")
            self._jobs.put(job)
        return job.future

    def close(self) -> None:
        """Commit what is queued, then end the thread."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            if job.starts():
                self._commit_group(job)

    def _commit_group(self, first: _Job) -> None:
        """Run `first` and what is queued behind it in one transaction."""
        group = [first]
        group_error: Exception | None = None
        try:
            with self._engine.begin() as connection:
                first.run(connection)
                for job in self._take():
                    group.append(job)
                    job.run(connection)
        except Exception as error:
            # The top of the thread: a failed begin or commit fails the group, and the next group tries anew.
            group_error = as_service_error(error)
        for job in group:
            job.finish(group_error)

    def _take(self) -> Iterator[_Job]:
        for _ in range(MAX_GROUP_WORKS - 1):
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is None:
                self._jobs.put(None)
                return
            if job.starts():
                yield job
