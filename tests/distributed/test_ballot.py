"""Votes over a real side group."""

import pytest
import torch.distributed as dist
from distributed.ranks import run_ranks
from gradwire.groups import open_side
from gradwire.steering.ballot import Ballot
from gradwire_protocol.messages import Directive
from gradwire_protocol.plans import PlanSpec

pytestmark = pytest.mark.distributed

DIRECTIVE = Directive(
    revision=7, model="model", kind="set", plan=PlanSpec(codec="int8"), epoch=0, author="größe 中"
)


def _ballot(rank: int) -> Ballot:
    return Ballot(open_side(dist.group.WORLD, ()), f"host-{rank}")


def _share(rank: int, world_size: int) -> Directive:
    return _ballot(rank).share(DIRECTIVE if rank == 0 else None)


def _vote(rank: int, world_size: int, refusals: dict[int, str]) -> list[tuple[int, str, str]]:
    return [(r.rank, r.host, r.reason) for r in _ballot(rank).vote(refusals.get(rank))]


def _norm(rank: int, world_size: int) -> float:
    return _ballot(rank).total_norm(3.0 if rank == 0 else 4.0)


def test_the_directive_of_rank_0_reaches_every_rank():
    assert run_ranks(3, _share) == [DIRECTIVE] * 3


def test_nobody_refuses():
    assert run_ranks(2, _vote, {}) == [[], []]


def test_every_rank_learns_who_refused_and_why():
    long = "no memory: " + "é" * 1000
    answers = run_ranks(3, _vote, {1: "no kernel", 2: long})
    assert answers[0] == answers[1] == answers[2]
    assert answers[0][0] == (1, "host-1", "no kernel")
    assert answers[0][1][0] == 2
    assert answers[0][1][2].startswith("no memory: é")


def test_the_norm_is_over_all_ranks():
    assert run_ranks(2, _norm) == [5.0, 5.0]
