"""Ranks by node: who shares a fast link, and the groups of an exchange in two levels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch.distributed import ProcessGroup

from gradwire_compression.collectives import compat
from gradwire_compression.errors import CompressionError

Nodes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class NodeGroups:
    """This rank's two groups, and its place in them."""

    # The ranks of this node.
    inner: ProcessGroup
    # One rank of each node: those with this rank's place in its node.
    outer: ProcessGroup
    inner_rank: int
    inner_size: int
    outer_rank: int
    outer_size: int


def check(nodes: Sequence[Sequence[int]], world_size: int) -> Nodes:
    """Return the ranks of each node ascending.

    Raises:
        CompressionError: Some rank belongs to no node, or to several.
    """
    if nodes and sorted(rank for node in nodes for rank in node) != list(range(world_size)):
        raise CompressionError(f"nodes are {list(nodes)}; wanted: each rank from 0 to {world_size - 1} once")
    return tuple(tuple(sorted(node)) for node in nodes)


def flat_reason(nodes: Nodes) -> str:
    """Return why an exchange in two levels is not possible or of no use, empty if it is."""
    sizes = {len(node) for node in nodes}
    if not nodes:
        return "the ranks' nodes are not known"
    if len(nodes) == 1:
        return "all ranks are on one node"
    if sizes == {1}:
        return "every node has one rank"
    if len(sizes) > 1:
        return "nodes have different numbers of ranks"
    return ""


def open_groups(nodes: Nodes, group: ProcessGroup | None) -> NodeGroups:
    """Make both groups; every rank of `group` must call this at the same point.

    Args:
        nodes: Ranks in `group`, equally many on each node.
        group: The framework's own group, None for the default one.

    Cost: two groups that stay until the process group ends, for the reason that `Exchange.close` gives.
    """
    members = group if group is not None else dist.group.WORLD
    assert members is not None
    own_rank = dist.get_rank(group)
    (own,) = (node for node in nodes if own_rank in node)
    across = [node[own.index(own_rank)] for node in nodes]
    inner, outer = (
        compat.new_side_group(group, [dist.get_global_rank(members, rank) for rank in ranks])
        for ranks in (own, across)
    )
    return NodeGroups(inner, outer, dist.get_rank(inner), len(own), dist.get_rank(outer), len(nodes))
