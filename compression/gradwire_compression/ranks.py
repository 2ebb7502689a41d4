"""The ranks that average with each other, and the small sums by which they agree."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression.collectives import compat
from gradwire_compression.collectives.nodes import NodeGroups, Nodes, check, flat_reason, open_groups

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Ranks:
    """Who takes part in the compressed exchange; `group` is None where nobody else is there to talk to."""

    group: ProcessGroup | None
    rank: int
    world_size: int
    # Groups of an exchange in two levels, or why there are none.
    nodes: NodeGroups | None = None
    flat_reason: str = ""
    # The ranks of each node; empty if unknown.
    by_node: Nodes = ()
    # Where gradients lie.
    device: torch.device = _CPU

    @property
    def num_on_node(self) -> int:
        """Ranks on this rank's node, 1 if unknown."""
        return next((len(node) for node in self.by_node if self.rank in node), 1)

    def check_order(self, codec: str) -> None:
        """Refuse a codec on CUDA tensors over a backend that is not ordered by streams.

        Raises:
            PlanError: Names the backend.
        """
        if codec != "none" and self.group is not None and self.device.type == "cuda":
            compat.check_stream_ordered(self.group, codec)

    def total(self, tensor: Tensor) -> None:
        """Sum `tensor` over the ranks in place; collective."""
        if self.group is not None:
            compat.start_all_reduce(tensor, self.group).wait()

    def mean(self, value: float) -> float:
        """Return the mean of `value` over the ranks, the same number on all of them; collective."""
        box = torch.tensor([value], dtype=torch.float64, device=self.device)
        self.total(box)
        return float(box) / (self.world_size if self.group is not None else 1)


def open_ranks(
    group: ProcessGroup | None,
    lane_group: ProcessGroup | None,
    nodes: Sequence[Sequence[int]],
    device: torch.device,
) -> Ranks:
    """Return the ranks of `group` with groups of their own; all of them call this at the same point.

    Args:
        group: The framework's own group, None for the default one.
        lane_group: A group of the same ranks that nobody else uses; None makes one where there are several.
        nodes: Ranks in `group` by node, equal on every rank; empty if unknown.
        device: Where gradients lie.

    Raises:
        CompressionError: `nodes` are not the ranks of `group`.
    """
    world_size = dist.get_world_size(group)
    if lane_group is None and world_size > 1:
        lane_group = compat.new_side_group(group)
    by_node = check(nodes, world_size)
    reason = flat_reason(by_node)
    node_groups = None if reason else open_groups(by_node, group)
    return Ranks(lane_group, dist.get_rank(group), world_size, node_groups, reason, by_node, device)
