"""The pulse of 65 to 1,000 ranks, simulated: a thread for each rank, and circles that only know their members."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from gradwire.steering.pulse import GUARD_ROLLBACK, Facts, Pulse, decode, encode
from gradwire.steering.side import MIN, Circle, NodeSide, Op, speaks_through_nodes
from torch import Tensor

SECONDS = 60.0


class MemoryCircle:
    """Ranks that meet in memory."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._barrier = threading.Barrier(size, timeout=SECONDS)
        self._lock = threading.Lock()
        self._values: dict[int, Tensor] = {}

    def member(self, place: int) -> Circle:
        """Return the circle as the rank at `place` sees it."""
        return _Member(self, place)

    def exchange(self, place: int, tensor: Tensor) -> list[Tensor]:
        """Return everybody's tensor by place."""
        with self._lock:
            self._values[place] = tensor.clone()
        self._barrier.wait()
        values = [self._values[one] for one in range(self._size)]
        # Nobody writes before everybody has read.
        self._barrier.wait()
        return values


class _Member:
    def __init__(self, circle: MemoryCircle, place: int) -> None:
        self._circle, self._place = circle, place

    def reduce(self, tensor: Tensor, op: Op) -> None:
        reduced = _reduced(self._circle.exchange(self._place, tensor), op)
        # What is left on other ranks means nothing, so it is spoiled.
        tensor.copy_(reduced) if self._place == 0 else tensor.fill_(77)

    def all_reduce(self, tensor: Tensor, op: Op) -> None:
        tensor.copy_(_reduced(self._circle.exchange(self._place, tensor), op))

    def broadcast(self, tensor: Tensor) -> None:
        tensor.copy_(self._circle.exchange(self._place, tensor)[0])


def _reduced(values: list[Tensor], op: Op) -> Tensor:
    stacked = torch.stack(values)
    return stacked.min(dim=0).values if op == MIN else stacked.sum(dim=0)


def _nodes(world_size: int, per_node: int | None, chance: random.Random) -> list[list[int]]:
    """Return nodes of `per_node` ranks, the last one of what is left; of any sizes and in any order for None."""
    ranks = list(range(world_size))
    if per_node is None:
        chance.shuffle(ranks)
    nodes = []
    while ranks:
        size = per_node or chance.randint(1, 16)
        nodes.append(sorted(ranks[:size]))
        ranks = ranks[size:]
    return sorted(nodes)


def _sides(world_size: int, nodes: list[list[int]]) -> list[NodeSide]:
    leaders = MemoryCircle(len(nodes))
    sides: dict[int, NodeSide] = {}
    for number, node in enumerate(nodes):
        circle = MemoryCircle(len(node))
        for place, rank in enumerate(node):
            above = leaders.member(number) if place == 0 else None
            sides[rank] = NodeSide(rank, world_size, circle.member(place), above)
    return [sides[rank] for rank in range(world_size)]


@pytest.mark.parametrize(
    ("world_size", "per_node"), [(65, 8), (66, 1 + 32), (128, 8), (200, None), (513, 8), (777, None), (1000, 8)]
)
def test_pulse_of_many_ranks_says_what_all_know(world_size: int, per_node: int | None) -> None:
    chance = random.Random(world_size)
    nodes = _nodes(world_size, per_node, chance)
    assert speaks_through_nodes(world_size, nodes)
    sides = _sides(world_size, nodes)
    odd = chance.randrange(world_size)
    facts = [
        Facts(
            newest_revision=3 if rank == 0 else 0,
            epoch=2,
            plan_hash=11,
            sync=5,
            interval=4.0 if rank == 0 else float("inf"),
            rollback=GUARD_ROLLBACK if rank == odd else 0,
            rollback_rank=rank if rank == odd else -1,
            durations_sync=4,
            durations=(0.1 + chance.random(), 0.2 + chance.random()),
            checksum=123,
        )
        for rank in range(world_size)
    ]
    direct = decode(torch.stack([encode(one) for one in facts]).min(dim=0).values)

    def pulse(rank: int) -> object:
        one = Pulse(sides[rank])
        one.issue(facts[rank])
        return one.await_result()

    threading.stack_size(256 * 1024)
    try:
        with ThreadPoolExecutor(world_size) as pool:
            agreements = list(pool.map(pulse, range(world_size), timeout=SECONDS))
    finally:
        threading.stack_size(0)
    assert agreements == [direct] * world_size
    assert (direct.rollback_rank, direct.newest_revision, direct.interval) == (odd, 3, 4)
    assert direct.has_equal_plans
    assert direct.has_equal_replicas


@pytest.mark.parametrize(
    ("world_size", "nodes", "through"),
    [
        (64, [[rank] for rank in range(64)], False),
        (65, [list(range(65))], False),
        (65, [[rank] for rank in range(65)], False),
        (65, [[0], list(range(1, 65))], True),
    ],
)
def test_ranks_speak_through_nodes_where_that_saves_connections(
    world_size: int, nodes: list[list[int]], through: bool
) -> None:
    assert speaks_through_nodes(world_size, nodes) is through


def test_thousand_ranks_hold_few_connections() -> None:
    nodes = _nodes(1000, 8, random.Random(0))
    most = max(len(node) - 1 for node in nodes) + len(nodes) - 1
    assert most == 131
