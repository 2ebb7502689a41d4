"""One message between two ranks at a time: latency and bandwidth of every pair, both ways."""

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter

import torch
import torch.distributed as dist
from gradwire_protocol.records import PairFacts
from torch import Tensor
from torch.distributed import ProcessGroup

# Shapers and switches let some hundred kilobytes pass at once; a message must be long against that.
LEAST_SECONDS = 0.05
FIRST_BYTES = 1 << 20
MAX_BYTES = 1 << 26

_SMALL_BYTES = 64
_NUM_SMALL = 9
_NUM_LARGE = 2

# Up to so many participants pairs are measured one after the other, and nothing else is on the wire meanwhile.
MAX_ALONE = 8


def measure_pairs(
    group: ProcessGroup, participants: Sequence[int], device: torch.device, hosts: Sequence[str]
) -> tuple[PairFacts, ...]:
    """Return what every ordered pair of `participants` reached, on all ranks.

    Args:
        group: All its ranks call this at the same point.
        participants: Ranks of the group that take part, ascending.
        device: Of the messages.
        hosts: Host of every rank of the group.

    Cost: some 100 ms a pair; beyond `MAX_ALONE` participants disjoint pairs are measured at once.
    """
    rank = dist.get_rank(group)
    found: list[tuple[int, int, float, float]] = []
    for pairs in rounds(participants):
        for source, target in pairs:
            for sender, receiver in ((source, target), (target, source)):
                if rank == sender:
                    latency, rate = _send(_Wire(group, receiver, device))
                    found.append((sender, receiver, latency, rate))
                elif rank == receiver:
                    _receive(_Wire(group, sender, device))
        # Ranks of other pairs wait here, or their traffic would be in the way.
        _barrier(group, device)
    everybody: list[list[tuple[int, int, float, float]]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(everybody, found, group=group)
    measured = sorted(pair for one in everybody for pair in one)
    return tuple(
        PairFacts(
            source=source,
            target=target,
            source_host=hosts[source],
            target_host=hosts[target],
            latency_seconds=latency,
            bytes_per_second=rate,
        )
        for source, target, latency, rate in measured
    )


def rounds(participants: Sequence[int]) -> Iterator[list[tuple[int, int]]]:
    """Yield rounds of pairs, every pair once: one pair a round, or disjoint ones as at a chess tournament."""
    if len(participants) <= MAX_ALONE:
        for index, first in enumerate(participants):
            for second in participants[index + 1 :]:
                yield [(first, second)]
        return
    # Circle method: one stays, the others move on by one seat; an odd one out rests.
    seats: list[int | None] = [*participants, *([None] if len(participants) % 2 else [])]
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        opposite = zip(seats[:half], reversed(seats[half:]), strict=True)
        yield [(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]


class _Wire:
    """Messages to and from one other rank."""

    def __init__(self, group: ProcessGroup, peer: int, device: torch.device) -> None:
        self._group = group
        self._peer = dist.get_global_rank(group, peer)
        self._device = device
        self._note = torch.zeros(1, dtype=torch.int64, device=device)

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self._device)

    def send(self, message: Tensor) -> None:
        dist.send(message, self._peer, group=self._group)

    def receive(self, message: Tensor) -> None:
        dist.recv(message, self._peer, group=self._group)

    def tell(self, number: int) -> None:
        self._note.fill_(number)
        self.send(self._note)

    def hear(self) -> int:
        self.receive(self._note)
        return int(self._note)


def _send(wire: _Wire) -> tuple[float, float]:
    """Return latency, seconds one way, and bandwidth, bytes per second, as the sender sees them."""
    small = wire.buffer(_SMALL_BYTES)
    latency = _shortest(wire, small, _NUM_SMALL) / 2
    num_bytes = FIRST_BYTES
    while True:
        seconds = _shortest(wire, wire.buffer(num_bytes), _NUM_LARGE)
        is_last = seconds >= LEAST_SECONDS or num_bytes >= MAX_BYTES
        if is_last:
            break
        num_bytes *= 4
    wire.tell(0)
    # The answer's way back is not the message's.
    return latency, num_bytes / max(seconds - latency, 1e-9)


def _shortest(wire: _Wire, message: Tensor, repeats: int) -> float:
    """Send a message several times and return the shortest time until its receipt was answered."""

    def once() -> None:
        wire.send(message)
        wire.hear()

    wire.tell(message.numel())
    wire.tell(repeats)
    once()
    return min(_seconds(once) for _ in range(repeats))


def _receive(wire: _Wire) -> None:
    """Answer what `_send` sends at the other end."""
    while num_bytes := wire.hear():
        message = wire.buffer(num_bytes)
        for _ in range(wire.hear() + 1):
            wire.receive(message)
            wire.tell(1)


def _seconds(action: Callable[[], None]) -> float:
    # `once` ends with a number read on the host, so a device has nothing left to do.
    began = perf_counter()
    action()
    return perf_counter() - began


def _barrier(group: ProcessGroup, device: torch.device) -> None:
    box = torch.zeros(1, device=device)
    dist.all_reduce(box, group=group)
    float(box)
