"""Who averages a model's gradients where DistributedDataParallel does not: told by names, nothing is imported."""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class _Known:
    """A framework, known by the module of its classes, and by their names where others stand in that module."""

    framework: str
    module: str
    advice: str
    names: tuple[str, ...] = ()

    def made(self, kind: type) -> bool:
        """Whether `kind` or a class that it derives from is this framework's."""
        return any(
            f"{base.__module__}.".startswith(f"{self.module}.") and (not self.names or base.__name__ in self.names)
            for base in kind.__mro__
        )


_DDP = "torch.nn.parallel.DistributedDataParallel"
_SHARDS = f"use {_DDP} instead of sharding if the model fits on one device"

_WRAPPERS = (
    _Known("DeepSpeed", "deepspeed", f"train with {_DDP} instead of deepspeed.initialize, or without Gradwire"),
    _Known("Megatron-LM", "megatron", f"train with {_DDP} instead of Megatron's own, or without Gradwire"),
    _Known("FSDP1", "torch.distributed.fsdp", _SHARDS, ("FullyShardedDataParallel",)),
    _Known("FSDP2", "torch.distributed.fsdp", _SHARDS, ("FSDPModule",)),
    _Known("pipeline parallelism", "torch.distributed.pipelining", f"attach to the stage's {_DDP}, if it has one"),
    _Known("DataParallel", "torch.nn.parallel.data_parallel", f"start one process per device and use {_DDP}"),
)
_TENSOR_PARALLEL = _Known("tensor parallelism", "torch.distributed.tensor", f"attach to a {_DDP} around it")


def declare(model: Any) -> str:
    """Return in one line who averages the gradients of `model` and what to do; empty if that is not known."""
    first = model[0] if isinstance(model, list | tuple) and model else model
    known = next((known for known in _WRAPPERS if known.made(type(first))), None)
    if known is None and isinstance(first, nn.Module):
        known = _inside(first)
    if known is None:
        return ""
    return (
        f"attach got a {type(first).__name__} of {known.framework}, which exchanges gradients by itself, so "
        "Gradwire neither measures nor steers this training and its communication stays unknown; "
        f"{known.advice}"
    )


def guess(kinds: Iterable[type]) -> str:
    """Return in one line why a training of several processes made no DDP model.

    Args:
        kinds: Classes of the tensors that its optimizers hold.
    """
    kinds = list(kinds)
    if any(_TENSOR_PARALLEL.made(kind) for kind in kinds):
        who = "its parameters are sharded by FSDP2 or tensor parallelism"
    elif any(kind.__name__ == "FlatParameter" for kind in kinds):
        who = "its parameters are sharded by FSDP1"
    elif loaded := next((known for known in _WRAPPERS[:2] if known.module in sys.modules), None):
        who = f"{loaded.framework} is loaded and exchanges gradients by itself"
    else:
        who = "the gradients are exchanged in some other way, or not at all"
    return f"no model was wrapped in {_DDP}; {who}, so its communication stays unknown"


def _inside(model: nn.Module) -> _Known | None:
    """Look for what shards parts of the model while the whole looks like any other."""
    for module in model.modules():
        if known := next((known for known in _WRAPPERS if known.made(type(module))), None):
            return known
    is_sharded = any(_TENSOR_PARALLEL.made(type(parameter.data)) for parameter in model.parameters())
    return _TENSOR_PARALLEL if is_sharded else None
