"""Who takes part: ids that rank 0 makes for everybody, and ranks grouped into nodes."""

import os
import socket
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from gradwire_protocol.identity import new_id

from gradwire import clocks, lineage
from gradwire.errors import AttachError
from gradwire.settings import Settings


@dataclass(frozen=True)
class Membership:
    """The same facts on every rank, and this rank's place among them."""

    run: str
    attempt: str
    run_name: str
    project: str
    rank: int
    world_size: int
    host: str
    node: int
    # Global order: the ranks of this rank's node, ascending.
    local_ranks: tuple[int, ...]
    # The ranks of every node, in the order of their numbers.
    nodes: tuple[tuple[int, ...], ...]
    started_at: float
    # Seconds by which each rank's wall clock is ahead of rank 0's.
    clock_offsets: tuple[float, ...]
    # Whether all ranks want their links tested; one that did not would be waited for.
    tests_link: bool = False


def place_of(host: str) -> tuple[str, str]:
    """Return what this process has in common with the ranks of its node, and with no others."""
    return os.environ.get("GROUP_RANK", host), os.environ.get("LOCAL_WORLD_SIZE", "")


def join(settings: Settings, group: dist.ProcessGroup, started_at: float) -> Membership:
    """Agree on ids and nodes; two all-gathers of small objects over `group`, called by all ranks.

    Ranks with equal (`GROUP_RANK` or host name, `LOCAL_WORLD_SIZE`) are a node, numbered by its smallest rank.

    Raises:
        AttachError: Some ranks have a saved state and others have none.
    """
    rank, world_size, host = dist.get_rank(group), dist.get_world_size(group), socket.gethostname()
    place = place_of(host)
    ranks = tuple(dist.get_process_group_ranks(group))
    shared = lineage.shared_attempt(settings, ranks)
    mine = {
        "place": place,
        "run": settings.run_id or (shared.run if shared else None),
        "remembered_run": lineage.remembered_run(settings),
        "new_run": new_id(),
        "attempt": shared.attempt if shared else new_id(),
        "run_name": settings.run,
        "project": settings.project,
        "started_at": started_at,
        "has_state": settings.state is not None,
        "tests_link": settings.tests_link,
    }
    everybody: list[Any] = [None] * world_size
    dist.all_gather_object(everybody, mine, group=group)
    _check_states([member["has_state"] for member in everybody])
    places = [member["place"] for member in everybody]
    first_ranks = sorted({places.index(other) for other in places})
    nodes = tuple(
        tuple(rank for rank, other in enumerate(places) if other == places[first]) for first in first_ranks
    )
    node = first_ranks.index(places.index(place))
    leader = everybody[0]
    # After a restart rank 0 may be a process on a node that was not there before.
    remembered = [member["remembered_run"] for member in everybody if member["remembered_run"]]
    run = leader["run"] or (remembered[0] if remembered else leader["new_run"])
    lineage.begin(settings, ranks, run, leader["attempt"])
    return Membership(
        run=run,
        attempt=leader["attempt"],
        run_name=leader["run_name"],
        project=leader["project"],
        rank=rank,
        world_size=world_size,
        host=host,
        node=node,
        local_ranks=nodes[node],
        nodes=nodes,
        started_at=leader["started_at"],
        clock_offsets=clocks.offsets(group),
        tests_link=world_size > 1 and all(member["tests_link"] for member in everybody),
    )


def _check_states(have: list[bool]) -> None:
    if any(have) and not all(have):
        missing = ", ".join(str(rank) for rank, has_state in enumerate(have) if not has_state)
        raise AttachError(f"rank {missing} got no state while others did; load every rank's state, or none")
