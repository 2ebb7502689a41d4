"""Gradient match: how close the decoded mean comes to the exact mean of what was to be sent, on samples.

On a sampled step every bucket keeps some elements of what this rank wanted to send, gradient and residuals, and the
same elements of the decoded mean. Behind the step's last bucket the first are averaged exactly and compared with
the second, beside the training and outside of what is timed.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradwire_compression.buckets import Slot
from gradwire_compression.lossy import LossyBucket
from gradwire_compression.observer import GuardedObserver, Match
from gradwire_compression.ranks import Ranks

# A run of elements of a tensor, and tensors of one sample: 64 KB that all ranks average, once in a while.
_RUN = 256
_MAX_TENSORS = 64
# Spreads the runs over a tensor from one sample to the next; prime.
_STRIDE = 7919


@dataclass
class _Part:
    """Elements of one bucket."""

    names: tuple[str, ...]
    numels: tuple[int, ...]
    # In the bucket.
    places: Tensor
    wanted: Tensor
    got: Tensor | None = None


@dataclass(frozen=True)
class _Sums:
    sync: int
    codec: str
    names: tuple[str, ...]
    num_elements: int
    # [tensors, 3] float64 on the host: exact times decoded, exact squared, decoded squared.
    sums: Tensor
    # When they are there; None if they are already.
    arrival: torch.cuda.Event | None


class Matches:
    """Samples of one exchange; all ranks ask for one at the same step."""

    def __init__(self, observer: GuardedObserver) -> None:
        self._observer = observer
        self._sync = 0
        self._parts: list[_Part] = []
        self._waiting: deque[_Sums] = deque()

    def ask(self, sync: int) -> None:
        """Sample synchronised step `sync`."""
        self._sync = sync

    def wants(self, sync: int) -> bool:
        """Return whether step `sync` is sampled."""
        return sync == self._sync

    def begin(self, bucket: LossyBucket, buffer: Tensor, num_buckets: int) -> None:
        """Keep what this rank wants to send, on the Lane, before the bucket is averaged."""
        slots = self._chosen(bucket.compressed, num_buckets)
        flat, compact = [], []
        starts = dict(zip((slot.name for slot in bucket.compressed), _starts(bucket.compressed), strict=True))
        for slot in slots:
            numel = min(_RUN, slot.numel)
            first = self._sync * _STRIDE % (slot.numel - numel + 1)
            flat.append(torch.arange(slot.offset + first, slot.offset + first + numel))
            compact.append(torch.arange(starts[slot.name] + first, starts[slot.name] + first + numel))
        places = _moved(torch.cat(flat), buffer.device)
        owed = bucket.collective.owed_at(_moved(torch.cat(compact), buffer.device))
        names, numels = tuple(slot.name for slot in slots), tuple(part.numel() for part in flat)
        self._parts.append(_Part(names, numels, places, buffer[places].float() + owed))

    def end(self, buffer: Tensor) -> None:
        """Keep what all ranks got instead, on the Lane, after the bucket was averaged."""
        part = self._parts[-1]
        part.got = buffer[part.places].float()

    def finishing(self, codec: str, ranks: Ranks) -> Callable[[], Tensor]:
        """Return the job that averages and compares, for the Lane behind the last bucket of the sampled step."""
        return partial(self._finish, self._sync, codec, ranks)

    def _finish(self, sync: int, codec: str, ranks: Ranks) -> Tensor:
        parts, self._parts = self._parts, []
        if not parts:
            return torch.empty(0)
        wanted = torch.cat([part.wanted for part in parts])
        ranks.total(wanted)
        got = torch.cat([part.got for part in parts if part.got is not None]).double()
        exact = wanted.double() / ranks.world_size
        names = tuple(name for part in parts for name in part.names)
        numels = torch.tensor([numel for part in parts for numel in part.numels])
        places = _moved(torch.repeat_interleave(torch.arange(len(names)), numels), got.device)
        products = torch.stack([exact * got, exact * exact, got * got], dim=1)
        sums = torch.zeros(len(names), 3, dtype=torch.float64, device=got.device).index_add_(0, places, products)
        arrival = None
        if sums.is_cuda:
            sums = torch.empty(sums.shape, dtype=sums.dtype, pin_memory=True).copy_(sums, non_blocking=True)
            arrival = torch.cuda.Event()
            arrival.record()
        self._waiting.append(_Sums(sync, codec, names, exact.numel(), sums, arrival))
        self.tell()
        # What a job returns is noted on its stream.
        return wanted

    def tell(self, wait: Callable[[], None] | None = None) -> None:
        """Tell the observer of what has arrived from the device, after `wait` if something may be on its way."""
        if wait is not None:
            wait()
        while self._waiting and ((arrival := self._waiting[0].arrival) is None or arrival.query()):
            match = _match(self._waiting.popleft())
            if match is not None:
                self._observer.matched(match)

    def _chosen(self, slots: Sequence[Slot], num_buckets: int) -> list[Slot]:
        """Return this sample's share of the bucket's tensors; others have their turn in later samples."""
        filled = [slot for slot in slots if slot.numel]
        most = max(1, _MAX_TENSORS // max(1, num_buckets))
        stride = -(-len(filled) // most)
        return filled[self._sync % stride :: stride]


def _moved(numbers: Tensor, device: torch.device) -> Tensor:
    """Return a copy on the device; from memory that is not pinned, the host might have to wait for it."""
    return numbers.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else numbers


def _starts(slots: Sequence[Slot]) -> list[int]:
    """Return where each tensor begins in compact order."""
    starts, start = [], 0
    for slot in slots:
        starts.append(start)
        start += slot.numel
    return starts


def _match(found: _Sums) -> Match | None:
    """Return the figures; None where there is nothing to compare, or it is not finite."""
    product, exact, got = found.sums.sum(dim=0).tolist()
    if not math.isfinite(product + exact + got) or exact <= 0:
        return None
    cosines = [(_cosine(*row), name) for name, row in zip(found.names, found.sums.tolist(), strict=True) if row[1]]
    worst, name = min(cosines)
    error = math.sqrt(max(0.0, got - 2 * product + exact) / exact)
    return Match(found.sync, found.codec, _cosine(product, exact, got), error, name, worst, found.num_elements)


def _cosine(product: float, one: float, other: float) -> float:
    # A tensor of which nothing was sent points nowhere.
    return product / math.sqrt(one * other) if one > 0 and other > 0 else 0.0
