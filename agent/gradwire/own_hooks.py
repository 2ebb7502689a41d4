"""Communication hooks of the script's own: under `gradwire run` they are measured, and never replaced."""

import functools
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from gradwire_compression import Observer
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.hooks.ddp import average_bucket
from gradwire_compression.observer import GuardedObserver, finisher
from torch.nn.parallel import DistributedDataParallel

# Bytes that torch's own hooks send for an element; what others send, only they know.
_SENT_BYTES = {"allreduce_hook": None, "fp16_compress_hook": 2, "bf16_compress_hook": 2}

_hooks: WeakKeyDictionary[DistributedDataParallel, "OwnHook"] = WeakKeyDictionary()


class OwnHook:
    """A hook with stamps before and after each bucket, once somebody watches; it pickles to the hook itself."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook
        self._observer: GuardedObserver | None = None
        self._clock: Callable[[], Any] = float
        self._world_size = 1
        self._num_syncs = 0
        # DDP asks for the name and the signature.
        functools.update_wrapper(self, hook)

    @property
    def name(self) -> str:
        """The hook's own name."""
        return str(getattr(self._hook, "__qualname__", type(self._hook).__name__))

    @property
    def is_watched(self) -> bool:
        """Whether somebody is told of every bucket."""
        return self._observer is not None

    def watch(self, observer: Observer, clock: Callable[[], Any], world_size: int) -> None:
        """Tell `observer` of every bucket from now on; stamps are of `clock`."""
        self._observer, self._clock, self._world_size = GuardedObserver(observer), clock, world_size

    def remove(self) -> None:
        """Stop telling."""
        self._observer = None

    def __call__(self, state: Any, bucket: Any) -> Any:
        """Average one bucket as the hook does; called by DDP."""
        observer = self._observer
        if observer is None:
            return self._hook(state, bucket)
        if bucket.index() == 0:
            self._num_syncs += 1
            observer.begin_sync()
        buffer = bucket.buffer()
        ready = self._clock()
        num_bytes = buffer.numel() * buffer.element_size()
        finish = finisher(observer, self._clock, lambda: 0, (self._num_syncs, bucket.index(), num_bytes), ready)
        # A hook may change the buffer, not its size.
        sent = self._wire_bytes(buffer)
        future = self._hook(state, bucket)
        if bucket.is_last():
            observer.end_sync()

        def pass_on(done: torch.futures.Future[Any]) -> Any:
            result = done.value()
            finish(sent)
            return result

        return future.then(pass_on)

    def __reduce__(self) -> Any:
        return (_itself, (self._hook,))

    def _wire_bytes(self, buffer: torch.Tensor) -> int:
        """Return what this rank sends for a bucket, 0 where that is not known."""
        if self.name not in _SENT_BYTES:
            return 0
        element_bytes = _SENT_BYTES[self.name] or buffer.element_size()
        return exact_wire_bytes(buffer.numel() * element_bytes, self._world_size)


def notice() -> None:
    """From now on put stamps around every hook that is registered, but for Gradwire's."""
    register = DistributedDataParallel.register_comm_hook

    @functools.wraps(register)
    def register_noticed(model: DistributedDataParallel, state: object, hook: Callable[..., Any]) -> None:
        if hook is average_bucket:
            register(model, state, hook)
            return
        own = OwnHook(hook)
        register(model, state, own)
        _hooks[model] = own

    DistributedDataParallel.register_comm_hook = register_noticed  # type: ignore[method-assign,assignment]


def own_hook(model: object) -> OwnHook | None:
    """Return the model's own hook if `notice` saw it; None for whatever is no DDP model."""
    return _hooks.get(model) if isinstance(model, DistributedDataParallel) else None


def _itself(hook: Any) -> Any:
    return hook
