"""The Lane: one ordered worker for exchanges of several phases, a thread or a stream."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Protocol

import torch
from torch import Tensor
from torch.futures import Future

from gradwire_compression.errors import ExchangeError

Job = Callable[[], Tensor]


class Lane(Protocol):
    """Runs jobs in the order they are given, beside backward.

    Jobs use a group of their own, so that their order on the wire does not mix with other collectives. A job's
    error fails its future, with an `ExchangeError`; it passes through C++ on its way and arrives as a RuntimeError
    with that text. After a failure the ranks no longer agree on what comes next, so every later job fails at once.
    """

    def submit(self, job: Job, what: str) -> Future[Tensor]:
        """Take a job; the future holds what it returns, or raises an error with `what` in its text."""

    def follow(self) -> None:
        """Let later jobs begin after what the caller has issued so far, wherever it was issued."""

    def drain(self) -> None:
        """Let what the caller does next begin after everything submitted so far."""

    def close(self) -> None:
        """End after what was submitted; nothing must be submitted afterwards."""


def lane_for(device: torch.device) -> Lane:
    """Return the Lane for buckets on `device`."""
    return StreamLane(device) if device.type == "cuda" else ThreadLane()


class _Jobs:
    """Runs jobs, and nothing any more after one that failed."""

    def __init__(self) -> None:
        self._failure: Exception | None = None

    def run(self, job: Job, future: Future[Tensor], what: str) -> None:
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


class StreamLane:
    """A stream beside the one that backward runs on: a job is issued at once, as a whole.

    Nothing in a job may wait for the device. The stream waits for what was issued before the job, and whoever waits
    for the future lets its own stream wait for the job's. Where there are no streams, on CPU, a job is simply run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._jobs = device, _Jobs()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, job: Job, what: str) -> Future[Tensor]:
        """Issue a job."""
        future: Future[Tensor] = Future(devices=[self._device]) if self._stream is not None else Future()
        self.follow()
        with self._beside(), torch.no_grad():
            # The future notes the stream on which it is completed.
            self._jobs.run(self._noting(job), future, what)
        return future.then(unwrap)

    def follow(self) -> None:
        """Let the stream wait for the current one."""
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def drain(self) -> None:
        """Let the current stream wait for this one; nobody else waits."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def close(self) -> None:
        """Do as `drain` does."""
        self.drain()

    @contextmanager
    def _beside(self) -> Iterator[None]:
        if self._stream is None:
            yield
        else:
            with torch.cuda.stream(self._stream):
                yield

    def _noting(self, job: Job) -> Job:
        def noted() -> Tensor:
            result = job()
            if self._stream is not None:
                # The bucket belongs to another stream, whose allocator must not give it away too early.
                result.record_stream(self._stream)
            return result

        return noted


class ThreadLane:
    """A thread that waits for the phases of a job, for backends that are not ordered by a stream.

    Chaining the phases with `future.then` instead deadlocks on gloo as soon as there are two buckets: a callback
    blocks the very thread that would finish what it waits for.
    """

    def __init__(self) -> None:
        self._queue: SimpleQueue[tuple[Job, Future[Tensor], str] | threading.Event | None] = SimpleQueue()
        self._jobs = _Jobs()
        self._thread = threading.Thread(target=self._run, name="gradwire-lane", daemon=True)
        self._thread.start()

    def submit(self, job: Job, what: str) -> Future[Tensor]:
        """Queue a job."""
        future: Future[Tensor] = Future()
        self._queue.put((job, future, what))
        return future.then(unwrap)

    def follow(self) -> None:
        """Do nothing: on CPU everything has been done when it was issued."""

    def drain(self) -> None:
        """Wait until everything queued so far has ended."""
        is_empty = threading.Event()
        self._queue.put(is_empty)
        is_empty.wait()

    def close(self) -> None:
        """End the thread after what is queued."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        torch.set_grad_enabled(False)
        while (entry := self._queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
            else:
                self._jobs.run(*entry)


def unwrap(future: Future[Tensor]) -> Tensor:
    """Return what the future holds, or raise its error; to be chained with `then`.

    An exception set on a bare future reaches DDP as a failed cast; read in a callback, it is raised as it is.
    """
    return future.value()
