"""The one place that knows which name a torch release has for what we need."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Work

from gradwire_compression.errors import PlanError

# torch 2.13 renamed it and warns about the old name.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter: Callable[..., Any] = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def start_all_reduce(tensor: Tensor, group: ProcessGroup | None) -> Work:
    """Start the sum of `tensor` over the group, in place.

    Every exact average of every step passes here, so it leaves out what `torch.distributed.all_reduce` does on top,
    a third of its time.
    """
    members = group if group is not None else dist.group.WORLD
    assert members is not None
    summed = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    options = dist.AllreduceOptions()
    options.asyncOp = True
    return members.allreduce([summed], options)


def start_all_to_all(output: Tensor, source: Tensor, group: ProcessGroup) -> Work:
    """Start the exchange of equal parts: part r of `source` goes to rank r; output[r] comes from rank r.

    gloo returns garbage without a word when the size is not a multiple of the world size, so it is checked here.
    """
    assert source.numel() % dist.get_world_size(group) == 0
    assert output.numel() == source.numel()
    return cast(Work, dist.all_to_all_single(output, source, group=group, async_op=True))


def start_all_gather(output: Tensor, source: Tensor, group: ProcessGroup) -> Work:
    """Start gathering every rank's `source` into `output`, in rank order."""
    assert output.numel() == source.numel() * dist.get_world_size(group)
    return cast(Work, _all_gather(output, source, group=group, async_op=True))


def start_reduce_scatter(output: Tensor, source: Tensor, group: ProcessGroup) -> Work:
    """Start the sum of `source` over the group, of which rank r gets part r in `output`."""
    assert source.numel() == output.numel() * dist.get_world_size(group)
    return cast(Work, _reduce_scatter(output, source, group=group, async_op=True))


def check_stream_ordered(group: ProcessGroup, codec: str) -> None:
    """Refuse a backend that does not order its work by CUDA streams.

    Raises:
        PlanError: The group's is gloo.
    """
    if dist.get_backend(group) == "gloo":
        raise PlanError(f"{codec} averages CUDA gradients over NCCL only, and this group is gloo's; use none")


def group_timeout(group: ProcessGroup | None) -> timedelta:
    """Return the time after which the group's collectives fail."""
    members = group if group is not None else dist.group.WORLD
    assert members is not None
    backend = members._get_backend(torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu"))
    return backend.options._timeout


def new_side_group(group: ProcessGroup | None, ranks: Sequence[int] | None = None) -> ProcessGroup:
    """Make a group with the backend and time-out of `group`; every rank that it is to have must call this.

    Args:
        group: None for the default group.
        ranks: Global ranks of the new group; None means all of `group`.
    """
    members = group if group is not None else dist.group.WORLD
    assert members is not None
    made = dist.new_group(
        ranks=list(ranks) if ranks is not None else dist.get_process_group_ranks(members),
        timeout=group_timeout(group),
        backend=dist.get_backend(group),
        use_local_synchronization=True,
    )
    return cast(ProcessGroup, made)


def existing_hook(ddp_model: torch.nn.parallel.DistributedDataParallel) -> str:
    """Return the name of the model's communication hook, empty if it has none."""
    facts = ddp_model._get_ddp_logging_data()
    return str(facts.get("comm_hook", ""))
