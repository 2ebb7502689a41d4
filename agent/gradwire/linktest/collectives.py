"""Collectives of growing size, and the line through their times: alpha seconds to begin, beta bytes per second.

    algbw = bytes / seconds          busbw = algbw x factor

The factors are those of nccl-tests, with the size of the very group that was measured; bytes are those of the whole
array: what one rank puts into an all-reduce and an all-to-all, takes out of an all-gather, or puts into a
reduce-scatter.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from gradwire_compression.collectives import compat
from gradwire_compression.costs import Line
from gradwire_compression.probing import least_seconds
from gradwire_protocol.records import CollectiveFacts, SizeFacts
from torch.distributed import ProcessGroup

from gradwire.linktest.pairs import FIRST_BYTES, LEAST_SECONDS, MAX_BYTES

_SMALL_BYTES = 4096
_NUM_SMALL = 9
_NUM_LARGE = 3
_NUM_ROWS = 2

# Starts one collective on an array of so many bytes and waits for it.
_Collective = Callable[[int], None]


def bus_factor(collective: str, num_ranks: int) -> float:
    """Return busbw over algbw for a group of `num_ranks`."""
    return (2.0 if collective == "all_reduce" else 1.0) * (num_ranks - 1) / num_ranks


def measure_collectives(group: ProcessGroup, device: torch.device) -> tuple[CollectiveFacts, ...]:
    """Return what each collective reaches, equal on all ranks; they call this at the same point.

    Cost: some 30 collectives of each kind, up to the first that takes 50 ms, 64 MiB at most.
    """
    return tuple(_measure(name, start, group, device) for name, start in _collectives(group, device).items())


def _collectives(group: ProcessGroup, device: torch.device) -> dict[str, _Collective]:
    num_ranks = dist.get_world_size(group)

    def floats(num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes // 4, device=device)

    def all_reduce(num_bytes: int) -> None:
        compat.start_all_reduce(floats(num_bytes), group).wait()

    def reduce_scatter(num_bytes: int) -> None:
        array = floats(num_bytes)
        compat.start_reduce_scatter(array[: array.numel() // num_ranks], array, group).wait()

    def all_gather(num_bytes: int) -> None:
        array = floats(num_bytes)
        compat.start_all_gather(array, array[: array.numel() // num_ranks].clone(), group).wait()

    def all_to_all(num_bytes: int) -> None:
        array = floats(num_bytes)
        compat.start_all_to_all(torch.empty_like(array), array, group).wait()

    return {
        "all_reduce": all_reduce,
        "reduce_scatter": reduce_scatter,
        "all_gather": all_gather,
        "all_to_all": all_to_all,
    }


def _measure(name: str, start: _Collective, group: ProcessGroup, device: torch.device) -> CollectiveFacts:
    num_ranks = dist.get_world_size(group)
    factor = bus_factor(name, num_ranks)
    sizes: list[SizeFacts] = []
    num_bytes = _whole(_SMALL_BYTES, num_ranks)
    while True:
        seconds = _seconds(partial(start, num_bytes), _NUM_LARGE if sizes else _NUM_SMALL, group, device)
        algbw = num_bytes / seconds
        sizes.append(
            SizeFacts(
                num_bytes=num_bytes,
                seconds=seconds,
                algbw_bytes_per_second=algbw,
                busbw_bytes_per_second=algbw * factor,
            )
        )
        if seconds >= LEAST_SECONDS or num_bytes >= MAX_BYTES:
            break
        num_bytes = _whole(max(FIRST_BYTES, 4 * num_bytes), num_ranks)
    return _fit(name, num_ranks, factor, sizes)


def _fit(name: str, num_ranks: int, factor: float, sizes: list[SizeFacts]) -> CollectiveFacts:
    """Lay the line through the smallest and the largest size; in between other limits than these two show."""
    small, large = sizes[0], sizes[-1]
    line = Line.through((small.num_bytes * factor, small.seconds), (large.num_bytes * factor, large.seconds))
    return CollectiveFacts(
        name=name,
        num_ranks=num_ranks,
        alpha_seconds=line.fixed_seconds,
        beta_bytes_per_second=1 / line.seconds_per_unit if line.seconds_per_unit else None,
        sizes=tuple(sizes),
    )


def _whole(num_bytes: int, num_ranks: int) -> int:
    """Return the size rounded up to whole floats for every rank; gloo's all-to-all takes no other."""
    part = 4 * num_ranks
    return -(-num_bytes // part) * part


def _seconds(action: Callable[[], None], repeats: int, group: ProcessGroup, device: torch.device) -> float:
    """Return what one collective takes: the mean of some in a row, the best of a few such rows, equal on all ranks.

    A single one may end early on a rank whose bytes still wait in its socket, at the cost of the next.
    """

    def row() -> None:
        for _ in range(repeats):
            action()

    # The first of a size allocates, and opens connections.
    action()
    times = []
    for _ in range(_NUM_ROWS):
        _longest(0.0, group, device)
        times.append(_longest(least_seconds(row, 1, device), group, device) / repeats)
    return min(times)


def _longest(seconds: float, group: ProcessGroup, device: torch.device) -> float:
    """Return the longest of the ranks' times, after all of them have come here."""
    box = torch.tensor([seconds], dtype=torch.float64, device=device)
    dist.all_reduce(box, op=dist.ReduceOp.MAX, group=group)
    return float(box)
