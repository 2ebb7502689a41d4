"""The one communication hook of a DDP model: it hands every bucket to the exchange, whatever the plan is."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire_compression.buckets import BucketView
from gradwire_compression.collectives import compat
from gradwire_compression.errors import HookTakenError
from gradwire_compression.exchange import Exchange
from gradwire_compression.hooks.kept import KeptGradients


class HookState:
    """What DDP keeps for the hook; pickles and copies to an empty one, so that the model still can be saved."""

    def __init__(self, exchange: Exchange | None = None, kept: KeptGradients | None = None) -> None:
        self.exchange = exchange
        self.kept = kept

    def __reduce__(self) -> tuple[type["HookState"], tuple[()]]:
        return (HookState, ())


def attach_ddp(ddp_model: DistributedDataParallel, exchange: Exchange) -> None:
    """Register the dispatcher; from the next backward on `exchange` averages the model's gradients.

    Args:
        ddp_model: Has no hook yet; may have run steps already.
        exchange: Made for the model's parameters and its process group.

    Raises:
        HookTakenError: The model has a communication hook; DDP allows one for its lifetime.
    """
    if name := compat.existing_hook(ddp_model):
        raise HookTakenError(
            f"the DDP model already has the communication hook {name}; "
            "wrap the module in a new DistributedDataParallel without a hook"
        )
    kept = None
    if ddp_model.gradient_as_bucket_view and not _is_power_of_two(exchange.world_size):
        kept = KeptGradients(ddp_model.module.parameters())
    ddp_model.register_comm_hook(HookState(exchange, kept), average_bucket)


# DDP looks at names and annotations of the parameters: "state, bucket", and none.
def average_bucket(state, bucket):  # type: ignore[no-untyped-def]
    """Average one bucket; called by DDP when its last gradient is there."""
    return _average(state, bucket)


def _average(state: HookState, bucket: Any) -> torch.futures.Future[Tensor]:
    assert state.exchange is not None
    parameters = bucket.parameters()
    buffer = bucket.buffer()
    view = BucketView(
        index=bucket.index(),
        is_last=bucket.is_last(),
        buffer=buffer,
        parameters=parameters,
        kept=state.kept.take(buffer, parameters) if state.kept is not None else None,
    )
    return state.exchange.average(view)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
