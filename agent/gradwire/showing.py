"""What `gradwire plan show` is told, and the events that say what a plan leaves uncompressed."""

import time
from collections.abc import Mapping

from gradwire_compression import Exchange
from gradwire_compression.reports import Explanation
from gradwire_protocol.records import Event

from gradwire.transport.local import PlanPage, TensorPlan


def plan_page(exchange: Exchange, codec_memory_bytes: Mapping[str, int]) -> PlanPage:
    """Return the plan in use with all tensors; any thread."""
    found = exchange.explain()
    tensors = tuple(
        TensorPlan(
            name=one.name,
            shape=one.shape,
            dtype=one.dtype,
            codec=one.codec,
            reason=one.reason,
            exact_bytes=one.exact_bytes,
            sent_bytes=one.sent_bytes,
        )
        for one in found.tensors
    )
    return PlanPage(
        codec=found.codec,
        tensors=tensors,
        num_tensors=len(tensors),
        num_buckets=found.num_buckets,
        num_spared=found.num_spared,
        exact_seconds=found.exact_seconds,
        lossy_seconds=found.lossy_seconds,
        memory_bytes=found.memory_bytes,
        codec_memory_bytes=dict(codec_memory_bytes),
    )


class Spared:
    """Tells of buckets that travel uncompressed under a codec because that is faster."""

    def __init__(self) -> None:
        self._seen: tuple[int, int] | None = None
        self._told: tuple[str, int, int] | None = None

    def news(self, exchange: Exchange, epoch: int, step: int) -> Event | None:
        """Return the event if other buckets than before are spared; called between two steps' buckets."""
        seen = epoch, exchange.layout_hash()
        if seen == self._seen:
            return None
        self._seen = seen
        found = exchange.explain()
        state = found.codec, found.num_buckets, found.num_spared
        if state == self._told:
            return None
        self._told = state
        return _event(found, step) if found.num_spared else None


def _event(found: Explanation, step: int) -> Event:
    return Event(
        at=time.time(),
        step=step,
        kind="spared",
        message=(
            f"{found.num_spared} of {found.num_buckets} buckets travel uncompressed, which should be faster: "
            f"{1000 * found.exact_seconds:.3g} ms against {1000 * found.lossy_seconds:.3g} ms with {found.codec}"
        ),
        data={
            "codec": found.codec,
            "num_spared": found.num_spared,
            "num_buckets": found.num_buckets,
            "exact_seconds": found.exact_seconds,
            "lossy_seconds": found.lossy_seconds,
        },
    )
