"""What the exchange tells its caller: when a synchronised step begins and ends, and what each bucket cost."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gradwire_compression.buckets import BucketView
from gradwire_compression.errors import PlanMismatchError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BucketTiming:
    """One bucket's way through the exchange on this rank; times are stamps of the exchange's clock, seconds."""

    # The synchronised step it belongs to, from 1.
    step: int
    index: int
    # Buckets of the last complete step; 0 until one is complete.
    num_buckets: int
    # The hook was called; the averaged bucket was there.
    ready: float
    done: float
    # (begin, end, "encode" or "decode") in the order of their beginning.
    codec: tuple[tuple[float, float, str], ...]
    # What the model asked to average.
    logical_bytes: int
    # What this rank sent: scales, padding and exempt tensors included.
    wire_bytes: int


@dataclass(frozen=True, slots=True)
class Match:
    """How close the decoded mean came to the exact mean of gradients and residuals, on a sample of elements."""

    # The synchronised step, from 1.
    step: int
    codec: str
    # Of all sampled elements together; the error is a share of the exact mean's norm.
    cosine: float
    relative_error: float
    # The parameter with the smallest cosine.
    worst_parameter: str
    worst_cosine: float
    num_elements: int


class Observer(Protocol):
    """Implemented by the caller.

    What it raises is logged once per method and never reaches training, but for `PlanMismatchError` from
    `begin_sync`, which fails the backward pass.
    """

    @property
    def watches_buckets(self) -> bool:
        """Whether `bucket_ready` and `bucket_done` are called in this step; the same from `begin_sync` to its end.

        A step that nobody watches and that compresses nothing is averaged without a look at its buckets.
        """

    def begin_sync(self) -> None:
        """Called in the hook of bucket 0 before anything of this step is sent; may call `Exchange.switch`."""

    def end_sync(self) -> None:
        """Called in the hook of the last bucket, after its exchange was issued."""

    def bucket_ready(self, view: BucketView) -> None:
        """Called in a bucket's hook before anything of it is sent; its buffer is only to be read, and only now."""

    def bucket_done(self, timing: BucketTiming) -> None:
        """Called on any thread when a bucket is averaged; must not block."""

    def nonfinite(self, parameters: tuple[str, ...]) -> None:
        """Called on any thread: this rank's own gradient was not finite in these parameters (codecs only)."""

    def result_nonfinite(self) -> None:
        """Called on any thread: the averaged result of a bucket is not finite, on every rank (codecs only)."""

    def flushed(self, num_steps: int, norm: float) -> None:
        """Called in the hook of bucket 0: a flush ended after `num_steps`; `norm` was this rank's residual."""

    def matched(self, match: Match) -> None:
        """Called on any thread: what `Exchange.sample_match` found, the same on every rank."""


class Silence:
    """The observer of nobody."""

    watches_buckets = True

    def begin_sync(self) -> None:
        """Do nothing."""

    def end_sync(self) -> None:
        """Do nothing."""

    def bucket_ready(self, view: BucketView) -> None:
        """Do nothing."""

    def bucket_done(self, timing: BucketTiming) -> None:
        """Do nothing."""

    def nonfinite(self, parameters: tuple[str, ...]) -> None:
        """Do nothing."""

    def result_nonfinite(self) -> None:
        """Do nothing."""

    def flushed(self, num_steps: int, norm: float) -> None:
        """Do nothing."""

    def matched(self, match: Match) -> None:
        """Do nothing."""


class GuardedObserver:
    """Forwards to an observer and keeps what it raises away from training."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._logged: set[str] = set()

    @property
    def watches_buckets(self) -> bool:
        """Forward."""
        return self._observer.watches_buckets

    def begin_sync(self) -> None:
        """Forward."""
        self._call(self._observer.begin_sync)

    def end_sync(self) -> None:
        """Forward."""
        self._call(self._observer.end_sync)

    def bucket_ready(self, view: BucketView) -> None:
        """Forward."""
        self._call(self._observer.bucket_ready, view)

    def bucket_done(self, timing: BucketTiming) -> None:
        """Forward."""
        self._call(self._observer.bucket_done, timing)

    def nonfinite(self, parameters: tuple[str, ...]) -> None:
        """Forward."""
        self._call(self._observer.nonfinite, parameters)

    def result_nonfinite(self) -> None:
        """Forward."""
        self._call(self._observer.result_nonfinite)

    def flushed(self, num_steps: int, norm: float) -> None:
        """Forward."""
        self._call(self._observer.flushed, num_steps, norm)

    def matched(self, match: Match) -> None:
        """Forward."""
        self._call(self._observer.matched, match)

    def _call(self, method: Callable[..., None], *args: Any) -> None:
        try:
            method(*args)
        except PlanMismatchError:
            raise
        except Exception:
            if method.__name__ not in self._logged:
                self._logged.add(method.__name__)
                _log.exception("observer.%s raised; training goes on, further ones are not logged", method.__name__)


def finisher(
    observer: GuardedObserver,
    clock: Callable[[], float],
    num_buckets: Callable[[], int],
    bucket: tuple[int, int, int],
    ready: float,
) -> Callable[..., None]:
    """Return what is called when a bucket is averaged, with the bytes sent and the codec intervals.

    Args:
        observer: Told of it.
        clock: Of the exchange.
        num_buckets: Returns the buckets of the last complete step.
        bucket: Synchronised step, index and bytes before compression.
        ready: Stamp of the hook's call.
    """
    step, index, num_bytes = bucket
    if not observer.watches_buckets:
        return _nobody_is_told

    def finish(wire_bytes: int, codec: Sequence[tuple[float, float, str]] = ()) -> None:
        done = clock()
        timing = (step, index, num_buckets(), ready, done, tuple(codec), num_bytes, wire_bytes)
        observer.bucket_done(BucketTiming(*timing))

    return finish


def _nobody_is_told(_wire_bytes: int, _codec: Sequence[tuple[float, float, str]] = ()) -> None:
    """Stand in for `finish` where nobody watches."""
