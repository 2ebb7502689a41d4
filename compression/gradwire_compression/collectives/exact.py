"""The uncompressed average, bit-equal to what DDP does without a hook."""

from collections.abc import Sequence

from torch import Tensor
from torch.distributed import ProcessGroup, Work

from gradwire_compression.buckets import Slot
from gradwire_compression.collectives import compat


def start_exact(
    buffer: Tensor,
    group: ProcessGroup | None,
    world_size: int,
    slots: Sequence[Slot] = (),
    kept: Sequence[bool] | None = None,
) -> Work:
    """Start averaging `buffer` in place: scale, then one SUM all-reduce of the whole.

    DDP multiplies by 1 / W while it copies a gradient into the bucket, and divides by W where the gradient already
    lay there; the two differ in the last bit unless W is a power of two. Dividing afterwards, or AVG, differs too.

    Args:
        buffer: Any dtype that the backend can sum; overwritten.
        group: The framework's own group.
        world_size: Ranks in the group.
        slots: Places of the parameters, needed with `kept`.
        kept: For each slot whether its gradient already lay in the buffer; None means none did.

    Cost: sends 2 (W - 1) / W of the buffer's bytes per rank, one extra pass over the buffer.
    """
    if kept is None or not any(kept):
        buffer.mul_(1 / world_size)
    elif all(kept):
        buffer.div_(world_size)
    else:
        for slot, is_kept in zip(slots, kept, strict=True):
            part = slot.of(buffer)
            if is_kept:
                part.div_(world_size)
            else:
                part.mul_(1 / world_size)
    return compat.start_all_reduce(buffer, group)


def exact_wire_bytes(num_bytes: int, world_size: int) -> int:
    """Return what one rank sends in a ring all-reduce of `num_bytes`."""
    return 2 * (world_size - 1) * num_bytes // world_size
