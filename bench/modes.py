"""The ways to average gradients that `bench.link` compares, on one rank."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from gradwire_compression import (
    BucketTiming,
    Exchange,
    Plan,
    Prepared,
    Silence,
    ddp,
    optimizer_class_name,
    registry,
)
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

COMPUTE_ONLY = "compute only"
PLAIN = "plain DDP"
# Averages nothing and lets the ranks wait for each other: what any hook costs.
HOOK_ALONE = "hook alone"
TORCH = "torch "
# int8 in the buckets that should be faster for it.
CHOICE = "int8 by choice"

# With more than one bucket PyTorch's PowerSGD hook hangs on gloo; it starts after two exact steps at the earliest.
ONE_BUCKET_MB = 10_000
POWERSGD_START = 2
# Only then its steps are as short as all later ones: what it allocates in each comes from the system at first.
POWERSGD_SETTLES = 6
# The hook's default, and the rank at which our codec stands by default.
POWERSGD_RANKS = (1, 4)
# Ours at the hook's default.
THIN = "powersgd rank 1"

Batch = tuple[Tensor, Tensor]


class Replica:
    """One DDP wrapper around a module of its own, with its optimizer."""

    def __init__(self, make_module: Callable[[], nn.Module], **ddp_arguments: Any) -> None:
        torch.manual_seed(0)
        self.module = make_module()
        # Spares a copy of all gradients, for every way to average them alike.
        self.model = DistributedDataParallel(self.module, gradient_as_bucket_view=True, **ddp_arguments)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.01, momentum=0.9)

    def backward(self, batch: Batch, is_synced: bool = True) -> None:
        """Run forward and backward."""
        with contextlib.nullcontext() if is_synced else self.model.no_sync():
            text, target = batch
            self.module.loss(self.model(text), target).backward()  # type: ignore[operator]

    def step(self, batch: Batch, is_synced: bool = True) -> None:
        """Run one full training step."""
        self.backward(batch, is_synced)
        nn.utils.clip_grad_norm_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


@dataclass
class Mode:
    """One way to average; `enter` is called before each block of its steps."""

    name: str
    replica: Replica
    enter: Callable[[], None] = lambda: None
    is_synced: bool = True
    # Without averages replicas stay equal only on equal batches, which such a mode gets.
    is_averaged: bool = True
    # Steps before its time counts for the first time: DDP deals its buckets out anew after a wrapper's first one.
    first_steps: int = 1
    # Grows while steps run; None where nobody can tell.
    meter: "Meter | None" = None


@dataclass
class Meter(Silence):
    """Observes an exchange: switches it at a block's first step, adds up what its buckets cost."""

    exchange: Exchange | None = None
    prepared: Prepared | None = None
    codec_seconds: float = 0.0
    wire_bytes: int = 0
    errors: list[Exception] = field(default_factory=list)

    def begin_sync(self) -> None:
        """Switch if a plan is waiting; the residual of another codec would change the size of a step."""
        assert self.exchange is not None
        if self.prepared is not None:
            try:
                self.exchange.switch(self.prepared, residuals="drop")
            except Exception as error:
                self.errors.append(error)
            self.prepared = None

    def bucket_done(self, timing: BucketTiming) -> None:
        """Add one bucket."""
        self.codec_seconds += sum(end - begin for begin, end, _ in timing.codec)
        self.wire_bytes += timing.wire_bytes


@dataclass
class _Choice:
    """What the dispatcher below does with a bucket."""

    hook: Callable[[Any, Any], Any]
    state: Any


# DDP looks at names and annotations of a hook's parameters: "state, bucket", and none.
def _dispatch(state, bucket):  # type: ignore[no-untyped-def]
    return state.hook(state.state, bucket)


def make_modes(
    make_module: Callable[[], nn.Module],
    plans: dict[str, Plan],
    only: list[str],
    hosts: Sequence[Sequence[int]] = (),
) -> list[Mode]:
    """Make every mode; all ranks do so at the same point.

    Args:
        make_module: Makes the model; called up to five times.
        plans: Ours by the name of their mode.
        only: Names of the modes that are wanted, all if empty.
        hosts: The ranks of each host.
    """
    plain = Replica(make_module)
    modes = [
        Mode(COMPUTE_ONLY, plain, is_synced=False, is_averaged=False),
        Mode(PLAIN, plain, first_steps=2),
        # A wrapper sends its model to all ranks, which takes seconds on slow links.
        *([_hook_alone(make_module)] if not only or HOOK_ALONE in only else []),
        *(_torch_modes(make_module) if not only or any(name.startswith(TORCH) for name in only) else []),
        *_our_modes(make_module, plans, hosts),
    ]
    return [mode for mode in modes if not only or mode.name in only]


def our_plans() -> dict[str, dict[str, Any]]:
    """Return our plans by mode: each codec of this build in every bucket, and one that chooses."""
    plans = {codec: Plan(codec=codec, every_bucket=True) for codec in registry.available()}
    plans[THIN] = Plan(codec="powersgd", parameters={"rank": 1}, every_bucket=True)
    plans[CHOICE] = Plan(codec="int8")
    return {name: plan.to_dict() for name, plan in plans.items()}


def _hook_alone(make_module: Callable[[], nn.Module]) -> Mode:
    replica, word = Replica(make_module), torch.zeros(1024)

    # DDP looks at names and annotations of a hook's parameters: "state, bucket", and none.
    def pass_on(state, bucket):  # type: ignore[no-untyped-def]
        if bucket.is_last():
            return dist.all_reduce(word, async_op=True).get_future().then(lambda _done: bucket.buffer())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    replica.model.register_comm_hook(None, pass_on)
    return Mode(HOOK_ALONE, replica, is_averaged=False, first_steps=2)


def _torch_modes(make_module: Callable[[], nn.Module]) -> list[Mode]:
    casts: dict[str, _Choice] = {
        "fp16": _Choice(default_hooks.fp16_compress_hook, None),
        "bf16": _Choice(default_hooks.bf16_compress_hook, None),
    }
    low_rank = {
        f"powersgd rank {rank}": _Choice(
            powerSGD_hook,
            PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=POWERSGD_START),
        )
        for rank in POWERSGD_RANKS
    }
    in_one_bucket = Replica(make_module, bucket_cap_mb=ONE_BUCKET_MB)
    return [
        *_dispatched(Replica(make_module), casts, first_steps=2),
        *_dispatched(in_one_bucket, low_rank, first_steps=POWERSGD_START + POWERSGD_SETTLES),
    ]


def _dispatched(replica: Replica, choices: dict[str, _Choice], first_steps: int) -> list[Mode]:
    """Return modes that share a wrapper: it takes one hook for its life, which does what the mode has chosen."""
    current = _Choice(default_hooks.allreduce_hook, None)
    replica.model.register_comm_hook(current, _dispatch)

    def entering(choice: _Choice) -> Callable[[], None]:
        def enter() -> None:
            current.hook, current.state = choice.hook, choice.state

        return enter

    return [
        Mode(TORCH + name, replica, entering(choice), first_steps=first_steps) for name, choice in choices.items()
    ]


def _our_modes(
    make_module: Callable[[], nn.Module], plans: dict[str, Plan], hosts: Sequence[Sequence[int]]
) -> list[Mode]:
    replica, meter = Replica(make_module), Meter()
    exchange = Exchange(
        list(replica.module.named_parameters()),
        replica.model.process_group,
        plan=Plan(),
        nodes=hosts,
        optimizer_class=optimizer_class_name(replica.optimizer),
        observer=meter,
    )
    meter.exchange = exchange
    ddp.attach_ddp(replica.model, exchange)
    exchange.decide_by()

    def entering(plan: Plan) -> Callable[[], None]:
        def enter() -> None:
            meter.prepared = exchange.prepare(plan)

        return enter

    return [Mode(name, replica, entering(plan), first_steps=2, meter=meter) for name, plan in plans.items()]
