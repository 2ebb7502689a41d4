"""The one communication hook of a DDP model: it hands every bucket to the exchange, whatever the plan is."""

from typing import Any
from weakref import WeakKeyDictionary

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
        self._is_left = False

    @property
    def is_left(self) -> bool:
        """Whether nobody steers the exchange any more, so that another may take its place."""
        return self._is_left

    def remove(self) -> None:
        """Leave the exchange to itself; DDP keeps the hook for the lifetime of the model."""
        self._is_left = True

    def take(self, exchange: Exchange) -> None:
        """Have `exchange` average from now on; on all ranks at the same step."""
        assert self.exchange is not None
        self.exchange.close()
        self.exchange, self._is_left = exchange, False

    def __reduce__(self) -> tuple[type["HookState"], tuple[()]]:
        return (HookState, ())


# Of every model that has the hook, as long as the model lives.
_states: WeakKeyDictionary[DistributedDataParallel, HookState] = WeakKeyDictionary()


def is_attached(ddp_model: DistributedDataParallel) -> bool:
    """Return whether an exchange that somebody steers averages the model's gradients."""
    state = _states.get(ddp_model)
    return state is not None and not state.is_left


def attach_ddp(ddp_model: DistributedDataParallel, exchange: Exchange) -> HookState:
    """Register the dispatcher; from the next backward on `exchange` averages the model's gradients.

    Args:
        ddp_model: Has no hook yet, or one of ours that was left; may have run steps already.
        exchange: Made for the model's parameters and its process group.

    Returns:
        The hook's state; `remove()` leaves it to whoever attaches next.

    Raises:
        HookTakenError: The model has a communication hook; DDP allows one for its lifetime.
    """
    state = _states.get(ddp_model)
    if state is not None:
        if not state.is_left:
            raise HookTakenError("the DDP model is attached already; close its session first")
        state.take(exchange)
        return state
    if name := compat.existing_hook(ddp_model):
        raise HookTakenError(
            f"the DDP model already has the communication hook {name}; "
            "wrap the module in a new DistributedDataParallel without a hook"
        )
    kept = None
    if ddp_model.gradient_as_bucket_view and not _is_power_of_two(exchange.world_size):
        kept = KeptGradients(ddp_model.module.parameters())
    state = _states[ddp_model] = HookState(exchange, kept)
    ddp_model.register_comm_hook(state, average_bucket)
    return state


# DDP looks at names and annotations of the parameters: "state, bucket", and none.
def average_bucket(state, bucket):  # type: ignore[no-untyped-def]
    """Average one bucket; called by DDP when its last gradient is there."""
    return _average(state, bucket)


def _average(state: HookState, bucket: Any) -> torch.futures.Future[Tensor]:
    assert state.exchange is not None
    view = BucketView(bucket.index(), bucket.is_last(), bucket.buffer(), bucket.parameters)
    if state.kept is not None:
        view.kept = state.kept.take(view.buffer, view.parameters)
    return state.exchange.average(view)


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0
