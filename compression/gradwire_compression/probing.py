"""Probing: a few exchanges that say how long a group needs for a small message and for a large one."""

import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from gradwire_compression.collectives import compat
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.costs import Line, Link

# What is sent by each rank: a message in which only the number of messages counts, and one in which the bytes do.
# Shapers let a burst of some hundred kilobytes pass, which must not be taken for the link.
_SMALL_BYTES = 4096
_FIRST_LARGE_BYTES = 1 << 20
_MAX_LARGE_BYTES = 1 << 26
_SMALL_REPEATS = 9
_LARGE_REPEATS = 3

# A large message that is short to send is sent so many times more: whatever else the machine does for a few
# milliseconds makes all three of its repeats longer, which a slow link's three outlast.
_SHORT_SECONDS = 0.02
_MORE_REPEATS = 12

# A larger message is tried until it takes so many times as long as the small one, and this long.
_LEAST_RATIO = 10.0
_LEAST_SECONDS = 0.002

# Does one exchange of so many bytes a rank and waits for it; returns the bytes that a rank sends.
_Exchange = Callable[[int], int]


def measure_link(group: ProcessGroup, device: torch.device) -> Link:
    """Return how fast the group's exchanges are, equal on all its ranks; they call this at the same point.

    Cost: some 30 exchanges, the largest of 1 MiB where that takes a while, up to 64 MiB where it does not, and 24
    more of those that are short; 0.3 s on a fast link, 0.6 s at 200 Mbit/s.
    """

    def all_reduce(num_bytes: int) -> int:
        buffer = torch.zeros(num_bytes // 4, device=device)
        compat.start_all_reduce(buffer, group).wait()
        return exact_wire_bytes(num_bytes, world_size)

    def two_phase(num_bytes: int) -> int:
        shard = -(-num_bytes // world_size)
        sent = torch.zeros(world_size * shard, dtype=torch.uint8, device=device)
        received = torch.empty_like(sent)
        compat.start_all_to_all(received, sent, group).wait()
        compat.start_all_gather(received, sent[:shard], group).wait()
        return 2 * (world_size - 1) * shard

    world_size = dist.get_world_size(group)
    return Link(_line(all_reduce, group, device), _line(two_phase, group, device))


def _line(exchange: _Exchange, group: ProcessGroup, device: torch.device) -> Line:
    sent = exchange(_SMALL_BYTES)
    small = _agreed_seconds(exchange, _SMALL_BYTES, _SMALL_REPEATS, group, device)
    for num_bytes in _sizes():
        sent_large = exchange(num_bytes)
        large = _agreed_seconds(exchange, num_bytes, _LARGE_REPEATS, group, device)
        if large > max(_LEAST_SECONDS, _LEAST_RATIO * small):
            break
    if large < _SHORT_SECONDS:
        large = min(large, _agreed_seconds(exchange, num_bytes, _MORE_REPEATS, group, device))
    return Line.through((sent, small), (sent_large, large))


def _sizes() -> Iterator[int]:
    num_bytes = _FIRST_LARGE_BYTES
    while num_bytes <= _MAX_LARGE_BYTES:
        yield num_bytes
        num_bytes *= 4


def _agreed_seconds(
    exchange: _Exchange, num_bytes: int, repeats: int, group: ProcessGroup, device: torch.device
) -> float:
    """Return the mean over ranks of each rank's shortest time; all take it from the same sum."""
    own = least_seconds(lambda: exchange(num_bytes), repeats, device)
    box = torch.tensor([own], dtype=torch.float64, device=device)
    compat.start_all_reduce(box, group).wait()
    return float(box) / dist.get_world_size(group)


def least_seconds(action: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the shortest time of some repeats, the device's work included; waits for the device.

    What else the machine does meanwhile makes the others longer, and is to be compared with nothing.
    """
    seconds = []
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        action()
        _wait(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
