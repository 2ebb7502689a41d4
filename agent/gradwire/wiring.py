"""Wiring: makes the parts of one attached model and connects them."""

import dataclasses
import logging
import time

import torch
import torch.distributed as dist
from gradwire_compression import Exchange, HookTakenError, Plan, PlanError, StateError, ddp, optimizer_class_name
from gradwire_compression.plan import EXACT
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import AttemptStarted
from torch.nn.parallel import DistributedDataParallel

from gradwire import clocks, console, foreign, wording
from gradwire.control import Control
from gradwire.errors import AttachError, UnsteerableError
from gradwire.facts import attempt_started, plan_of
from gradwire.groups import MOST_GROUPS, num_names, open_side, use_up_names
from gradwire.left_out import LeftOut
from gradwire.losses import Losses
from gradwire.membership import Membership, join
from gradwire.outlet import Outlet
from gradwire.own_hooks import OwnHook, own_hook
from gradwire.session import Session
from gradwire.settings import Settings
from gradwire.showing import plan_page
from gradwire.steering.ballot import Ballot
from gradwire.steering.checks import Checks
from gradwire.steering.member import Member
from gradwire.steering.pulse import Pulse
from gradwire.steering.rehearsal import Rehearsal
from gradwire.steering.replicas import Replicas
from gradwire.steering.samples import Samples
from gradwire.steering.side import Side
from gradwire.steering.steering import Steering
from gradwire.timing.clock import Clock, clock_for
from gradwire.timing.cost import OwnCost
from gradwire.timing.phases import Phases, install
from gradwire.timing.recorder import Recorder
from gradwire.transport.node import open_reporter

log = logging.getLogger("gradwire")

NamedParameters = list[tuple[str, torch.nn.Parameter]]


def connect(model: DistributedDataParallel, optimizer: torch.optim.Optimizer | None, settings: Settings) -> Session:
    """Return the session of `model`; collective over the model's ranks.

    Raises:
        AttachError: `model` is not a DDP model, has nothing to train, has a communication hook already, or a state
            cannot be gone on from.
    """
    console.set_up()
    parameters = _trainable(model)
    optimizer_class = optimizer_class_name(optimizer) if optimizer is not None else None
    if own_hook(model) is not None:
        # The script's hook averages: no plan of ours is ever in use.
        settings = dataclasses.replace(settings, plan=PlanSpec(), state=None)
    membership = join(settings, model.process_group, time.time())
    side, unsteered_reason = _side(model, membership)

    clock = clock_for(parameters[0][1].device)
    phases = Phases(clock)
    losses = Losses(lambda step, value: steering.guard.observe_loss(step, value))
    outlet = Outlet(membership, settings.model, losses)
    cost = OwnCost(settings.budget)
    recorder = Recorder(clock=clock, rank=membership.rank, on_window=outlet.on_window, cost=cost)
    if unsteered_reason:
        recorder.stop_comparing(unsteered_reason)
    rehearsal = _rehearsal(parameters, clock, membership, recorder, outlet)
    steering = _steering(model, settings, membership, side, cost, phases, recorder, outlet, rehearsal)
    exchange, hook = _exchange(model, settings, membership, parameters, optimizer_class, steering, clock)
    steering.exchange = exchange
    started = attempt_started(
        settings,
        membership,
        exchange,
        group=model.process_group,
        parameters=[parameter for _, parameter in parameters],
        optimizer_class=optimizer_class,
        unsteered_reason=unsteered_reason,
    )
    _open(outlet, settings, membership, steering, exchange, started)
    return Session(
        model=settings.model,
        membership=membership,
        phases=phases,
        recorder=recorder,
        steering=steering,
        losses=losses,
        outlet=outlet,
        left_out=LeftOut(model.module),
        rehearsal=rehearsal,
        hooks=[*install(phases, model, optimizer), hook],
    )


def _steering(
    model: DistributedDataParallel,
    settings: Settings,
    membership: Membership,
    side: Side | None,
    cost: OwnCost,
    phases: Phases,
    recorder: Recorder,
    outlet: Outlet,
    rehearsal: Rehearsal,
) -> Steering:
    return Steering(
        member=Member(membership.rank, membership.world_size, membership.host),
        phases=phases,
        recorder=recorder,
        pulse=Pulse(side) if side is not None else None,
        ballot=Ballot(side, membership.host) if side is not None else None,
        replicas=Replicas(_replicated(model), side),
        checks=Checks(settings.check_share),
        cost=cost,
        guard_mode=settings.guard,
        start_step=settings.start_step,
        on_result=outlet.on_result,
        on_event=outlet.on_event,
        samples=Samples(rehearsal, outlet.on_sample),
    )


def _open(
    outlet: Outlet,
    settings: Settings,
    membership: Membership,
    steering: Steering,
    exchange: Exchange,
    started: AttemptStarted,
) -> None:
    reporter = open_reporter(
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
        on_plan=lambda: plan_page(exchange, started.codec_memory_bytes),
    )
    if membership.rank == 0:
        console.say(wording.attached(started, membership.run, settings.server, settings.spool))
    outlet.open(reporter, _control(settings, membership, steering) if steering.is_steered else None)
    if membership.rank == 0:
        for event in clocks.skews(membership.clock_offsets, settings.start_step):
            outlet.on_event(event)
    if settings.state is not None and (note := settings.state.get("note")):
        steering.tell("redistributed", str(note))


def _trainable(model: DistributedDataParallel) -> NamedParameters:
    if not isinstance(model, DistributedDataParallel):
        if sentence := foreign.declare(model):
            raise UnsteerableError(sentence)
        raise AttachError(
            f"attach got a {type(model).__name__}; wanted: a torch.nn.parallel.DistributedDataParallel model"
        )
    parameters = [(name, p) for name, p in model.module.named_parameters() if p.requires_grad]
    if not parameters:
        raise AttachError("the model has no parameter that requires a gradient, so nothing is exchanged")
    return parameters


def _replicated(model: DistributedDataParallel) -> NamedParameters:
    """Return what DDP made equal on all ranks when it wrapped the module; what it was told to ignore may differ."""
    ignored = model.parameters_to_ignore
    return [
        (name, parameter)
        for name, parameter in model.module.named_parameters()
        if name not in ignored and parameter.layout == torch.strided and not parameter.is_meta
    ]


def _exchange(
    model: DistributedDataParallel,
    settings: Settings,
    membership: Membership,
    parameters: NamedParameters,
    optimizer_class: str | None,
    observer: Steering,
    clock: Clock,
) -> tuple[Exchange, ddp.HookState | OwnHook]:
    """Put the exchange behind the model's one hook; the other one returned is its handle.

    Where the hook is the script's own, the exchange only says what each codec would take, and averages nothing.
    """
    try:
        exchange = Exchange(
            parameters,
            model.process_group,
            plan=plan_of(settings.plan),
            optimizer_class=optimizer_class,
            observer=observer,
            clock=clock.stamp,
            nodes=membership.nodes,
            loss_scale=settings.loss_scale,
        )
        if (own := own_hook(model)) is not None:
            own.watch(observer, clock.stamp, membership.world_size)
            return exchange, own
        hook = ddp.attach_ddp(model, exchange)
        exchange.decide_by()
        if settings.state is not None:
            exchange.load_state_dict(settings.state)
    except (HookTakenError, PlanError, StateError) as error:
        raise AttachError(str(error)) from error
    return exchange, hook


def _rehearsal(
    parameters: NamedParameters, clock: Clock, membership: Membership, recorder: Recorder, outlet: Outlet
) -> Rehearsal:
    """Return what tries codecs: on rank 0 of several, since others would find the same."""
    is_told = membership.rank == 0 and membership.world_size > 1
    num_elements = sum(one.numel for one in Plan(codec="int8").resolve(parameters) if one.codec != EXACT)
    on_result = outlet.on_sample if is_told else None
    return Rehearsal(clock, parameters[0][1].device, num_elements, recorder.later, on_result)


def _side(model: DistributedDataParallel, membership: Membership) -> tuple[Side | None, str]:
    """Return the side, or None and why training will be measured but not steered, alike on all ranks.

    Ranks may reach `attach` minutes apart, and met when they joined: the time to open is for the network alone.
    """
    group = model.process_group
    if (own := own_hook(model)) is not None:
        reason = f"the model has a communication hook of its own, {own.name}"
        if membership.rank == 0:
            log.warning("gradwire: measured, not steered: %s", reason)
        return None, reason
    side, reason, before = None, "", num_names()
    try:
        side = open_side(group, membership.nodes)
    except RuntimeError as error:
        reason = str(error)[:500]
    reasons: list[str] = [""] * membership.world_size
    dist.all_gather_object(reasons, reason, group=group)
    if not any(reasons):
        return side, ""
    use_up_names(before + MOST_GROUPS)
    reason = reason or next(filter(None, reasons))
    log.warning("gradwire: measured, not steered: %s", reason)
    return None, reason


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
