"""`attach`: connects one model to measurement, compression and the server."""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gradwire_compression import Exchange, HookTakenError, PlanError, ddp, optimizer_class_name
from gradwire_protocol.plans import PlanSpec
from torch.nn.parallel import DistributedDataParallel

from gradwire.control import Control
from gradwire.errors import AttachError
from gradwire.facts import attempt_started, plan_of
from gradwire.groups import open_side_group
from gradwire.losses import Losses
from gradwire.membership import Membership, join
from gradwire.outlet import Outlet
from gradwire.session import Session
from gradwire.settings import Settings, read_settings
from gradwire.steering.ballot import Ballot
from gradwire.steering.pulse import Pulse
from gradwire.steering.steering import Member, Steering
from gradwire.timing.clock import Clock, clock_for
from gradwire.timing.phases import Phases, install
from gradwire.timing.recorder import Recorder
from gradwire.transport.node import open_reporter

log = logging.getLogger("gradwire")


def attach(
    model: DistributedDataParallel,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    run: str | None = None,
    server: str | None = None,
    token: str | None = None,
    name: str = "model",
    plan: str | Mapping[str, Any] | PlanSpec | None = None,
    project: str | None = None,
    run_id: str | None = None,
    start_step: int = 0,
    total_steps: int | None = None,
    total_tokens: int | None = None,
    better: Mapping[str, str] | None = None,
    spool: str | Path | None = None,
) -> Session:
    """Attach to a DDP model on every rank, before its first backward pass or between steps.

    Everything has a default and most have an environment variable (`GRADWIRE_SERVER`, `GRADWIRE_TOKEN`,
    `GRADWIRE_RUN`, `GRADWIRE_RUN_ID`, `GRADWIRE_PROJECT`, `GRADWIRE_PLAN`, `GRADWIRE_SPOOL`); an explicit argument
    wins. Without a server the agent still measures, guards and compresses, and keeps its data in the spool.

    Args:
        model: Wrapped model without a communication hook of its own.
        optimizer: Marks the optimizer phase and says which codecs are safe; unknown means careful.
        run: Name shown in lists; need not be unique.
        server: Address such as `http://host:8420`.
        token: Ingest token made by `gradwire-server token create --kind ingest`.
        name: Tells several attached models of one process apart.
        plan: First plan: a codec's name, a mapping of `PlanSpec` fields, or a `PlanSpec`. Default: uncompressed.
        project: Groups runs.
        run_id: UUID of an earlier run that this attempt goes on with.
        start_step: Steps already done by earlier attempts.
        total_steps: Steps until training ends, for the finish date.
        total_tokens: Tokens until training ends, for the finish date.
        better: "higher" or "lower" by metric; loss is "lower".
        spool: Folder for data not yet delivered; default `~/.gradwire/spool`.

    Raises:
        SettingError: An argument or variable is not acceptable.
        AttachError: `model` is not a DDP model, has nothing to train, or has a communication hook already.

    Cost: one side group, two threads on every rank and two more on the first rank of a node; about 1 ms of CPU per
    pulse, five pulses a second at most. Collective: call it on all ranks of the model.
    """
    settings = read_settings({key: value for key, value in locals().items() if key not in ("model", "optimizer")})
    parameters = _trainable(model)
    group = model.process_group
    optimizer_class = optimizer_class_name(optimizer) if optimizer is not None else None
    pulse_group, unsteered_reason = _side_group(group)
    membership = join(settings, pulse_group or group, time.time())
    member = Member(membership.rank, membership.world_size, membership.host)

    clock = clock_for(parameters[0][1].device)
    phases = Phases(clock)
    losses = Losses(lambda step, value: steering.guard.observe_loss(step, value))
    outlet = Outlet(membership, settings.model, losses)
    recorder = Recorder(clock=clock, rank=membership.rank, on_window=outlet.on_window)
    if unsteered_reason:
        recorder.stop_comparing(unsteered_reason)
    steering = Steering(
        member=member,
        clock=clock,
        phases=phases,
        recorder=recorder,
        pulse=Pulse(pulse_group) if pulse_group is not None else None,
        ballot=_ballot(pulse_group, member),
        start_step=settings.start_step,
        on_result=outlet.on_result,
        on_event=outlet.on_event,
    )
    exchange = steering.exchange = _exchange(model, settings, parameters, optimizer_class, steering, clock)
    started = attempt_started(
        settings,
        membership,
        exchange,
        group=group,
        parameters=[parameter for _, parameter in parameters],
        optimizer_class=optimizer_class,
        unsteered_reason=unsteered_reason,
    )
    handles = install(phases, model, optimizer)
    outlet.open(
        open_reporter(
            run=membership.run,
            attempt=membership.attempt,
            model=settings.model,
            node=membership.node,
            rank=membership.rank,
            local_ranks=membership.local_ranks,
            started=started,
            spool_folder=settings.spool,
            server=settings.server,
            token=settings.token,
            on_rollback=steering.request_rollback,
        ),
        _control(settings, membership, steering) if steering.is_steered else None,
    )

    def uninstall() -> None:
        for handle in handles:
            handle.remove()

    return Session(
        membership=membership,
        phases=phases,
        recorder=recorder,
        steering=steering,
        losses=losses,
        outlet=outlet,
        uninstall=uninstall,
    )


def _trainable(model: DistributedDataParallel) -> list[tuple[str, torch.nn.Parameter]]:
    if not isinstance(model, DistributedDataParallel):
        raise AttachError(
            f"attach got a {type(model).__name__}; wanted: a torch.nn.parallel.DistributedDataParallel model"
        )
    parameters = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
    if not parameters:
        raise AttachError("the model has no parameter that requires a gradient, so nothing is exchanged")
    return parameters


def _exchange(
    model: DistributedDataParallel,
    settings: Settings,
    parameters: list[tuple[str, torch.nn.Parameter]],
    optimizer_class: str | None,
    observer: Steering,
    clock: Clock,
) -> Exchange:
    """Put the exchange behind the model's one hook."""
    try:
        exchange = Exchange(
            parameters,
            model.process_group,
            plan=plan_of(settings.plan),
            optimizer_class=optimizer_class,
            observer=observer,
            clock=clock.stamp,
        )
        ddp.attach_ddp(model, exchange)
    except (HookTakenError, PlanError) as error:
        raise AttachError(str(error)) from error
    return exchange


def _side_group(group: dist.ProcessGroup) -> tuple[dist.ProcessGroup | None, str]:
    """Return the pulse's group, or None and why training will be measured but not steered."""
    try:
        return open_side_group(group), ""
    except RuntimeError as error:
        log.warning("gradwire: measured, not steered: %s", error)
        return None, str(error)[:500]


def _ballot(group: dist.ProcessGroup | None, member: Member) -> Ballot | None:
    if group is None:
        return None
    return Ballot(group, dist.get_global_rank(group, 0), member.rank, member.host)


def _control(settings: Settings, membership: Membership, steering: Steering) -> Control | None:
    if membership.rank != 0 or settings.server is None:
        return None
    return Control(
        server=settings.server,
        token=settings.token,
        run=membership.run,
        attempt=membership.attempt,
        model=settings.model,
        on_directive=steering.offer,
    )
