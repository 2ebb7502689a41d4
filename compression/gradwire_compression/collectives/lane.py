"""The Lane: one ordered worker for exchanges of several phases."""

import threading
from collections.abc import Callable
from queue import SimpleQueue

import torch
from torch import Tensor
from torch.futures import Future

from gradwire_compression.errors import ExchangeError

Job = Callable[[], Tensor]


class Lane:
    """A thread that runs jobs in the order they are given, beside backward.

    Chaining the phases with `future.then` instead deadlocks on gloo as soon as there are two buckets: a callback
    blocks the very thread that would finish what it waits for. Jobs use a group of their own, so that their order
    on the wire does not mix with other collectives.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Job, Future[Tensor], str] | threading.Event | None] = SimpleQueue()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="gradwire-lane", daemon=True)
        self._thread.start()

    def submit(self, job: Job, what: str) -> Future[Tensor]:
        """Queue a job; the future holds what it returns, or raises an `ExchangeError` with `what` in its text.

        The error passes through C++ on its way, and arrives as a RuntimeError with that text.
        After a failure the ranks no longer agree on what comes next, so every later job fails at once.
        """
        future: Future[Tensor] = Future()
        self._queue.put((job, future, what))
        return future.then(unwrap)

    def drain(self) -> None:
        """Wait until everything queued so far has ended."""
        is_empty = threading.Event()
        self._queue.put(is_empty)
        is_empty.wait()

    def close(self) -> None:
        """End the thread after what is queued; jobs must not be submitted afterwards."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
            else:
                self._run_job(*entry)

    def _run_job(self, job: Job, future: Future[Tensor], what: str) -> None:
        try:
            if self._failure is not None:
                raise self._failure
            result = job()
        except Exception as error:
            self._failure = self._failure or error
            failure = ExchangeError(f"{what} failed: {error}")
            failure.__cause__ = error
            future.set_exception(failure)  # type: ignore[arg-type]
        else:
            future.set_result(result)


def unwrap(future: Future[Tensor]) -> Tensor:
    """Return what the future holds, or raise its error; to be chained with `then`.

    An exception set on a bare future reaches DDP as a failed cast; read in a callback, it is raised as it is.
    """
    return future.value()
