"""One bucket averaged exactly, with what an earlier codec still owes to its parameters."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from gradwire_compression.buckets import BucketView, Slot
from gradwire_compression.collectives.exact import exact_wire_bytes, start_exact
from gradwire_compression.flush import Flush


def average_unseen(view: BucketView, group: ProcessGroup | None, world_size: int) -> Future[Tensor]:
    """Start averaging a bucket that nobody watches, without a look at what it holds.

    Args:
        view: As for `average_plainly`; none of its gradients is kept.
        group: The framework's own group.
        world_size: Ranks in the group.
    """
    return start_exact(view.buffer, group, world_size).get_future().then(_only_one)


def average_plainly(
    view: BucketView,
    slots: Sequence[Slot],
    flush: Flush | None,
    group: ProcessGroup | None,
    world_size: int,
    on_done: Callable[[int], None],
) -> Future[Tensor]:
    """Start averaging `view.buffer` in place; the future holds it.

    Args:
        view: The bucket; its buffer must not be touched until the future is complete.
        slots: Its parameters.
        flush: What is still added to gradients, None if nothing is.
        group: The framework's own group.
        world_size: Ranks in the group.
        on_done: Called on any thread when the buffer is averaged, with the bytes that this rank sent.
    """
    buffer = view.buffer
    flush = flush if flush is not None and flush.touches(slots) else None
    # What is flushed is added in float32, whatever the bucket's dtype.
    summed = buffer if flush is None else buffer.to(torch.float32)
    if flush is not None:
        flush.add(summed, slots)
    work = start_exact(summed, group, world_size, slots, view.kept)
    wire_bytes = exact_wire_bytes(summed.numel() * summed.element_size(), world_size)

    def finish(future: Future[list[Tensor]]) -> Tensor:
        result = _only_one(future)
        if flush is not None:
            flush.settle(result, slots)
            result = buffer.copy_(result)
        on_done(wire_bytes)
        return result

    return work.get_future().then(finish)


def _only_one(future: Future[list[Tensor]]) -> Tensor:
    return future.value()[0]
