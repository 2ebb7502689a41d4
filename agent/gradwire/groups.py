"""Side groups of the agent: gloo groups of the model's ranks, on the interface that reaches the master."""

import contextlib
import datetime
import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch.distributed as dist
from gradwire_compression.collectives.compat import group_timeout

from gradwire.host.network import interface_to
from gradwire.steering.side import DirectSide, GlooCircle, NodeSide, Side, speaks_through_nodes

# Opening a side group must not hold up training for the model group's half hour.
OPEN_SECONDS = 20.0


# Groups that a side may need on one rank.
MOST_GROUPS = 2


def open_side(model_group: dist.ProcessGroup, nodes: Sequence[Sequence[int]]) -> Side:
    """Open the side of the model's ranks; collective over them.

    Args:
        model_group: Its operations' time-out becomes that of the side.
        nodes: Ranks of each node in the model's group, equal on all ranks.

    Raises:
        RuntimeError: The ranks cannot reach each other within `OPEN_SECONDS`; names `GLOO_SOCKET_IFNAME`.
    """
    rank, world_size = dist.get_rank(model_group), dist.get_world_size(model_group)
    if not speaks_through_nodes(world_size, nodes):
        return DirectSide(open_side_group(model_group))
    own, before = next(node for node in nodes if rank in node), num_names()
    firsts = sorted(node[0] for node in nodes)
    node = GlooCircle(open_side_group(model_group, own))
    if rank in firsts:
        return NodeSide(rank, world_size, node, GlooCircle(open_side_group(model_group, firsts)))
    # First ranks opened one group more.
    use_up_names(before + MOST_GROUPS)
    return NodeSide(rank, world_size, node, None)


def open_side_group(model_group: dist.ProcessGroup, ranks: Sequence[int] | None = None) -> dist.ProcessGroup:
    """Open a gloo group of these ranks of the model's group, or of all; its operations get that group's time-out.

    Raises:
        RuntimeError: The ranks cannot reach each other within `OPEN_SECONDS`; names `GLOO_SOCKET_IFNAME`.
    """
    members = dist.get_process_group_ranks(model_group)
    try:
        with on_master_interface():
            group: dist.ProcessGroup = dist.new_group(
                ranks=members if ranks is None else [members[rank] for rank in ranks],
                backend="gloo",
                timeout=datetime.timedelta(seconds=OPEN_SECONDS),
                use_local_synchronization=True,
            )
            # A pulse waits as long as the gradients themselves would, for example while one rank evaluates.
            dist.distributed_c10d._set_pg_timeout(group_timeout(model_group), group)
    except RuntimeError as error:
        raise RuntimeError(
            f"the ranks could not open a gloo side group ({error}); set GLOO_SOCKET_IFNAME to the interface that "
            "reaches the other nodes"
        ) from error
    return group


def num_names() -> int:
    """Return how many group names are in use in this process."""
    return len(dist.distributed_c10d._world.pg_names)


def use_up_names(count: int) -> None:
    """Let `count` group names be in use: torch names groups by the ranks and that number, which has to be equal.

    A name whose group did not open on all ranks must not come again either: the store keeps its addresses, and a
    later group of that name would wait for them.
    """
    names: Any = dist.distributed_c10d._world.pg_names
    while num_names() < count:
        names[_NoGroup()] = f"gradwire {num_names()}"


class _NoGroup:
    """Stands for a group that never was; torch shuts down or aborts whatever has a name when all groups end."""

    def shutdown(self) -> None:
        """Do nothing."""

    def abort(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def on_master_interface() -> Iterator[None]:
    """Point gloo to the interface that routes to MASTER_ADDR, unless the user has chosen one.

    Ordinary hosts resolve their own name to 127.0.1.1, on which other hosts cannot reach them.
    """
    name = None if "GLOO_SOCKET_IFNAME" in os.environ else interface_to(os.environ.get("MASTER_ADDR", ""))
    if name is None:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
