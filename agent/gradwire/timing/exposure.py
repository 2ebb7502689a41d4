"""What one exchange of gradients cost the step: transfer, wait and codec, exposed or overlapped.

Per bucket, `start` is the later of `ready` and the end of the bucket before, so that queueing is not communication;
`own` is done - start less the codec intervals. Transfer is the minimum of `own` over ranks, over the bucket's whole
chain; the rest of `own` was spent waiting for a slow rank. Only transfer can be saved by compression.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Interval = tuple[float, float]


@dataclass(frozen=True)
class BucketTrace:
    """One bucket's exchange on this rank, seconds; `codec` holds (begin, end, "encode" or "decode")."""

    index: int
    ready: float
    done: float
    codec: tuple[tuple[float, float, str], ...] = ()
    logical_bytes: int = 0
    wire_bytes: int = 0


@dataclass(frozen=True)
class Exposure:
    """Seconds of one exchange; transfer and wait are None where the other ranks' durations are not known."""

    communication: float = 0.0
    transfer: float | None = None
    wait: float | None = None
    codec: float = 0.0
    overlapped: float = 0.0
    encode: float = 0.0
    decode: float = 0.0


@dataclass
class _Kinds:
    transfer: list[Interval] = field(default_factory=list)
    codec: list[Interval] = field(default_factory=list)
    wait: list[Interval] = field(default_factory=list)


def own_seconds(buckets: Sequence[BucketTrace]) -> list[float]:
    """Return each bucket's own communication time in bucket order, seconds."""
    return [sum(end - begin for begin, end in segments) for segments in _own_segments(buckets)]


def expose(buckets: Sequence[BucketTrace], end_of_backward: float, transfers: Sequence[float] | None) -> Exposure:
    """Say where one exchange's time went.

    Args:
        buckets: Every bucket of the exchange, in the order they were sent.
        end_of_backward: When the last gradient was computed; what ran before is overlapped.
        transfers: Minimum over ranks of each bucket's own seconds, or None if unknown.

    Where intervals overlap, transfer counts before codec and codec before wait.
    """
    if not buckets:
        known = transfers is not None
        return Exposure(transfer=0.0 if known else None, wait=0.0 if known else None)
    kinds = _Kinds()
    for position, (bucket, segments) in enumerate(zip(buckets, _own_segments(buckets), strict=True)):
        kinds.codec.extend((begin, end) for begin, end, _ in bucket.codec)
        own = sum(end - begin for begin, end in segments)
        wait_seconds = 0.0 if transfers is None else max(0.0, own - transfers[position])
        waited, moved = _cut(segments, wait_seconds)
        kinds.wait.extend(waited)
        kinds.transfer.extend(moved)
    last_done = max(bucket.done for bucket in buckets)
    tail = [(end_of_backward, max(end_of_backward, last_done))]
    transfer = _length(_intersect(kinds.transfer, tail))
    codec = _length(_intersect(kinds.codec + kinds.transfer, tail)) - transfer
    everything = _length(_intersect(kinds.codec + kinds.transfer + kinds.wait, tail))
    wait = everything - codec - transfer
    communication = _union(kinds.transfer + kinds.wait)
    overlapped = _length(communication) - _length(_intersect(communication, tail))
    return Exposure(
        communication=transfer + wait,
        transfer=None if transfers is None else transfer,
        wait=None if transfers is None else wait,
        codec=codec,
        overlapped=max(0.0, overlapped),
        encode=_codec_seconds(buckets, "encode"),
        decode=_codec_seconds(buckets, "decode"),
    )


def _codec_seconds(buckets: Sequence[BucketTrace], operation: str) -> float:
    return sum(end - begin for bucket in buckets for begin, end, name in bucket.codec if name == operation)


def _own_segments(buckets: Sequence[BucketTrace]) -> list[list[Interval]]:
    """Return for each bucket the parts of [start, done] outside its codec intervals."""
    segments, done_before = [], float("-inf")
    for bucket in buckets:
        start = max(bucket.ready, done_before)
        done_before = max(done_before, bucket.done)
        segments.append(_subtract((start, bucket.done), [(begin, end) for begin, end, _ in bucket.codec]))
    return segments


def _subtract(whole: Interval, holes: list[Interval]) -> list[Interval]:
    parts, position = [], whole[0]
    for begin, end in _union(holes):
        if begin > position:
            parts.append((position, min(begin, whole[1])))
        position = max(position, end)
    if position < whole[1]:
        parts.append((position, whole[1]))
    return [(begin, end) for begin, end in parts if end > begin]


def _cut(segments: list[Interval], seconds: float) -> tuple[list[Interval], list[Interval]]:
    """Split segments into their first `seconds` and the rest: a collective waits first and moves bytes then."""
    first, rest = [], []
    for begin, end in segments:
        taken = min(end - begin, seconds)
        seconds -= taken
        if taken > 0:
            first.append((begin, begin + taken))
        if begin + taken < end:
            rest.append((begin + taken, end))
    return first, rest


def _union(intervals: list[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def _intersect(intervals: list[Interval], window: list[Interval]) -> list[Interval]:
    ((low, high),) = window
    clipped = ((max(begin, low), min(end, high)) for begin, end in _union(intervals))
    return [(begin, end) for begin, end in clipped if end > begin]


def _length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in _union(intervals))
