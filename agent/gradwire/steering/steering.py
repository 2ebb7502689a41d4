"""Steering: the exchange's observer on every rank, and the only place where a plan changes.

A pulse goes out in the hook of the last bucket and is awaited in the hook of bucket 0 of the next exchange, the one
place that every rank passes equally often. What the ranks agreed on there, all of them act on there.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from gradwire_compression import BucketTiming, Exchange, Match, Plan, PlanMismatchError
from gradwire_protocol.messages import Directive
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import Event, Refusal, Refused, Result, Switched
from msgspec import convert
from msgspec.structs import asdict

from gradwire.settings import GuardMode
from gradwire.showing import Spared
from gradwire.steering.ballot import Ballot, fits, try_preparing
from gradwire.steering.cadence import Cadence
from gradwire.steering.checks import SETTLING_STEPS, Checks
from gradwire.steering.guard import Guard
from gradwire.steering.member import Member
from gradwire.steering.pulse import GUARD_REPORT, GUARD_ROLLBACK, LOCAL_ROLLBACK, Agreement, Facts, Pulse
from gradwire.steering.replicas import Replicas
from gradwire.steering.results import Cause, switched, would_roll_back
from gradwire.steering.samples import Samples
from gradwire.steering.tracing import Tracing
from gradwire.steering.wish import Wish
from gradwire.timing.cost import OwnCost
from gradwire.timing.phases import Phases
from gradwire.timing.recorder import Recorder
from gradwire.timing.trace import BucketStamps, SyncTrace

log = logging.getLogger("gradwire")


class Steering:
    """Observer of one model's exchange.

    Args:
        guard_mode: Whether the guard rolls back, only tells, or is silent.
        pulse: None where no side group could be opened: then measured, not steered.
        on_result: Called on every rank with a switch or refusal, inside the hook, and with whether this rank is the
            one to report it; must not block.
        on_event: Called with events of this rank.
        samples: Of gradients; their rehearsal sees the buckets of traced steps.
    """

    def __init__(
        self,
        *,
        member: Member,
        phases: Phases,
        recorder: Recorder,
        pulse: Pulse | None,
        ballot: Ballot | None,
        replicas: Replicas,
        checks: Checks,
        guard_mode: GuardMode,
        cost: OwnCost,
        start_step: int,
        on_result: Callable[[Result, bool], None],
        on_event: Callable[[Event], None],
        samples: Samples,
    ) -> None:
        self._member = member
        self._phases = phases
        self._recorder = recorder
        self._pulse = pulse
        self._ballot = ballot
        self._replicas, self._spared, self._checks = replicas, Spared(), checks
        self._tracing = Tracing(recorder, cost)
        self._on_result = on_result
        self._on_event = on_event
        self._samples, self.bucket_ready = samples, samples.rehearsal.look
        self._lock = threading.Lock()
        self._cadence = Cadence()
        self._sync: SyncTrace | None = None
        self._num_syncs = 0
        # Directives are known to rank 0 only, until it announces their revision.
        self._newest: Directive | None = None
        self._seen_revision = 0
        self._wish = Wish()
        self._is_stopping = False
        self._is_stopped = False
        # A directive made before an unasked rollback must not undo it.
        self._unasked_rollback_epoch = 0
        self._guard_mode = guard_mode
        self.guard = Guard(is_armed=self._is_compressing, ignores=checks.covers, on_breach=self._on_breach)
        self.exchange: Exchange | None = None
        self.epoch = 0
        self._start_step, self.since_step = start_step, start_step + 1
        # The step in progress; `session.step` counts it up.
        self.step = start_step + 1
        self.agent_seconds = 0.0

    # What the session and other threads ask for.

    @property
    def is_steered(self) -> bool:
        """True while the pulse runs."""
        return self._pulse is not None

    @property
    def codec(self) -> str:
        """The codec that the exchange in progress really uses."""
        exchange = self._exchange()
        plan = exchange.plan
        is_exact = plan.codec == "none" or exchange.num_syncs <= plan.warmup_steps or exchange.is_held
        return "none" if is_exact else plan.codec

    @property
    def is_check(self) -> bool:
        """True for the steps of a check window."""
        return self._checks.is_on

    @property
    def is_settling(self) -> bool:
        """True for steps that comparisons leave out."""
        exchange = self._exchange()
        is_newly_warm = 0 < self._num_syncs - exchange.plan.warmup_steps <= SETTLING_STEPS
        is_new = self.step < self.since_step + SETTLING_STEPS or self._checks.is_settling(self.step)
        return is_new or is_newly_warm or exchange.is_settling

    def traces_next(self) -> bool:
        """Say, once in a step, whether the one in progress is to be traced."""
        is_steered = self._pulse is not None
        return self._tracing.is_due(self.step, is_settling=self.is_settling, is_steered=is_steered)

    def offer(self, directive: Directive) -> None:
        """Take a directive from the server; rank 0 only, any thread."""
        if not fits(directive):
            reason = "the plan is larger than one broadcast"
            refusal = Refusal(rank=self._member.rank, host=self._member.host, reason=reason)
            self._on_result(self._refused(directive, (refusal,)), True)
            return
        with self._lock:
            if self._newest is None or directive.revision > self._newest.revision:
                self._newest = directive

    def request_rollback(self, reason: str) -> None:
        """Ask all ranks to go back to uncompressed at the next pulse; any thread."""
        self._wish.ask(LOCAL_ROLLBACK, reason)

    def request_stop(self) -> None:
        """Ask all ranks to end compression and the pulse together."""
        self._is_stopping = True
        self._is_stopped = self._pulse is None

    def finish_pulse(self) -> None:
        """Take in a pulse that is still in flight, at the end of training."""
        if self._pulse is not None and self._pulse.is_in_flight and (found := self._await_pulse(self._pulse)):
            self._recorder.split(found.durations_sync, found.least_durations, closes_window=found.closes_window)

    def exchange_state(self) -> dict[str, Any]:
        """Return what the exchange needs to go on later."""
        return self._exchange().state_dict()

    def adopt_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, between steps and on all ranks; its plan, if it is another, is a switch."""
        exchange = self._exchange()
        before = exchange.plan
        exchange.load_state_dict(state)
        if note := state.get("note"):
            self.tell("redistributed", str(note))
        if exchange.plan != before:
            self._begin_epoch()
            plan = convert(exchange.plan.to_dict(), PlanSpec)
            result = self._switched(plan, "local", "loaded from a saved state", None, None)
            result.is_rollback = plan.codec == "none"
            self._on_result(result, self._member.rank == 0)

    def tell(
        self, kind: str, message: str, *, level: Literal["info", "warning", "error"] = "info", step: int = -1
    ) -> None:
        """Report something that happened to this rank, in the step in progress unless told otherwise."""
        at_step = self.step if step < 0 else step
        self._on_event(
            Event(at=time.time(), step=at_step, kind=kind, message=message, rank=self._member.rank, level=level)
        )

    # Observer of the exchange.

    @property
    def watches_buckets(self) -> bool:
        """Whether this exchange is traced."""
        return self._phases.is_traced and not self._is_stopped

    def begin_sync(self) -> None:
        """Open the trace of this exchange and act on the pulse, before anything of it is sent."""
        if self._is_stopped:
            return
        began = time.perf_counter()
        self._num_syncs += 1
        self._tracing.end(self._sync)
        self._sync = self._phases.begin_sync(self._num_syncs)
        self._cadence.tick(began)
        if self._pulse is not None and self._pulse.is_in_flight and (found := self._await_pulse(self._pulse)):
            self._act(found)
        self._checks.tick(self._exchange(), began, self.step, self.codec)
        self.agent_seconds += time.perf_counter() - began

    def end_sync(self) -> None:
        """Issue the pulse if it is due."""
        began = time.perf_counter()
        if self._pulse is not None and self._cadence.is_due(self._num_syncs):
            try:
                self._pulse.issue(self._facts())
            except RuntimeError as error:
                self._lose_steering(f"the pulse could not be sent: {error}")
            self._speak(self._spared.news(self._exchange(), self.epoch, self.step))
        self.agent_seconds += time.perf_counter() - began

    def bucket_done(self, timing: BucketTiming) -> None:
        """Note one bucket's stamps."""
        sync = self._sync
        if sync is not None and sync.is_traced and not self._is_stopped:
            sync.buckets.append(
                BucketStamps(
                    timing.index, timing.ready, timing.done, timing.codec, timing.logical_bytes, timing.wire_bytes
                )
            )

    def nonfinite(self, parameters: tuple[str, ...]) -> None:
        """Report that this rank's own gradient is not finite."""
        names = ", ".join(parameters[:5]) + (f" and {len(parameters) - 5} more" if len(parameters) > 5 else "")
        self.tell(
            "nonfinite", f"the gradient of {names} is not finite on rank {self._member.rank}", level="warning"
        )

    def result_nonfinite(self) -> None:
        """Tell the guard that the averaged gradient is not finite."""
        self.guard.observe_gradient(self.step, is_finite=False)

    def flushed(self, num_steps: int, norm: float) -> None:
        """Report that the carried-over error was paid back."""
        self.tell("flushed", f"carried-over error of norm {norm:.4g} was added over {num_steps} steps")

    def matched(self, match: Match) -> None:
        """Pass the gradient match on, which is the same on every rank."""
        if self._member.rank == 0:
            self._samples.pass_on(match, self.epoch, self.guard)

    # Inside begin_sync.

    def _act(self, agreement: Agreement) -> None:
        self._cadence.agree(self._num_syncs - 1, agreement.interval)
        self._speak(self._tracing.agree(agreement.stride, self.step))
        over = self._tracing.over(agreement.durations_sync, self._num_syncs - 1)
        self._recorder.split(over, agreement.least_durations, closes_window=agreement.closes_window)
        if not agreement.has_equal_plans:
            raise PlanMismatchError(
                f"ranks disagree on the active plan at step {self.step}: rank {self._member.rank} holds "
                f"{self._exchange().plan.to_dict()} of epoch {self.epoch}; restart from a checkpoint"
            )
        if agreement.has_equal_replicas is not None:
            self._speak(self._replicas.settle(agreement.has_equal_replicas))
            if self._member.rank == 0:
                self._samples.compared(self._replicas.compared_step, are_equal=agreement.has_equal_replicas)
        if agreement.rollback == GUARD_REPORT:
            reason = self._wish.take(GUARD_REPORT)
            if agreement.rollback_rank == self._member.rank:
                self._on_event(would_roll_back(reason, self.step))
        if agreement.is_stopping:
            self._stop()
        elif agreement.rollback > GUARD_REPORT:
            self._roll_back(agreement)
        elif agreement.newest_revision > self._seen_revision:
            self._vote()
        elif agreement.check_exchanges:
            self._checks.begin(self._exchange(), agreement.check_exchanges)
        self._samples.pulse(self._exchange(), self.step, self.codec)

    def _vote(self) -> None:
        assert self._ballot is not None, "a pulse without a ballot"
        directive = self._ballot.share(self._newest)
        self._seen_revision = directive.revision
        is_rollback = directive.kind == "rollback"
        prepared, refusal = None, None
        if not is_rollback and directive.epoch < self._unasked_rollback_epoch:
            refusal = f"made before the automatic rollback at step {self.since_step}; make it again to insist"
        else:
            # A server that is newer than this agent may know codecs that are unknown here.
            prepared, refusal = try_preparing(
                lambda: self._exchange().prepare(Plan.from_dict(asdict(directive.plan)))
            )
        refusals = self._ballot.vote(refusal)
        if refusals:
            self._on_result(self._refused(directive, refusals), self._member.rank == 0)
            return
        norm = self._switch(prepared, is_rollback=is_rollback)
        result = self._switched(directive.plan, "directive", directive.reason, norm, directive)
        self._on_result(result, self._member.rank == 0)

    def _roll_back(self, agreement: Agreement) -> None:
        exchange = self._exchange()
        cause: Cause = "guard" if agreement.rollback == GUARD_ROLLBACK else "local"
        norm = None
        if exchange.plan.codec != "none":
            norm = self._switch(exchange.prepare(Plan()), is_rollback=True)
            self._unasked_rollback_epoch = self.epoch
        result = self._switched(PlanSpec(), cause, self._wish.take(), norm, None)
        self._on_result(result, agreement.rollback_rank == self._member.rank)

    def _switch(self, prepared: object, *, is_rollback: bool) -> float | None:
        """Change the active plan; returns the norm dropped over all ranks, None if residuals were carried over."""
        residuals: Literal["drop", "carry"] = "drop" if is_rollback else "carry"
        try:
            report = self._exchange().switch(prepared, residuals=residuals)  # type: ignore[arg-type]
        except Exception as error:
            # The other ranks have switched by now; going on would hang or mix the gradients.
            raise PlanMismatchError(
                f"rank {self._member.rank} could not switch at step {self.step}: {error}; restart from a checkpoint"
            ) from error
        self._begin_epoch()
        if report.residual_norm_dropped is None or self._ballot is None:
            return None
        return self._ballot.total_norm(report.residual_norm_dropped)

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.since_step = self.step
        self.guard.reset()

    def _stop(self) -> None:
        self._exchange().close()
        self._pulse = None
        self._is_stopped = True

    # Helpers.

    def _await_pulse(self, pulse: Pulse) -> Agreement | None:
        try:
            return pulse.await_result()
        except RuntimeError as error:
            self._lose_steering(f"the pulse did not come back: {error}")
            return None

    def _lose_steering(self, reason: str) -> None:
        log.warning("gradwire: measured, no longer steered: %s", reason)
        self._pulse = None
        self._recorder.stop_comparing(reason)
        self.tell("unsteered", reason[:500], level="error")

    def _facts(self) -> Facts:
        exchange = self._exchange()
        durations_sync, durations = self._tracing.compared()
        is_leader = self._member.rank == 0
        syncs_per_step = self._num_syncs / max(1, self.step - self._start_step)
        with self._lock:
            newest, rollback = self._newest, self._wish.kind
        return Facts(
            newest_revision=newest.revision if newest is not None else 0,
            epoch=self.epoch,
            plan_hash=exchange.plan.hash(),
            layout_hash=exchange.layout_hash(),
            sync=self._num_syncs,
            rollback=rollback,
            rollback_rank=self._member.rank if rollback else -1,
            is_stopping=self._is_stopping,
            closes_window=is_leader and self._cadence.closes_window(time.perf_counter()),
            # A pulse costs as much as the traces of some steps: whoever saves on these saves on pulses too.
            interval=self._cadence.wanted_interval(self._tracing.economy) if is_leader else float("inf"),
            durations_sync=durations_sync,
            durations=durations,
            checksum=self._replicas.checksum(self.step, is_training=not self._phases.is_shadow),
            check_exchanges=self._checks.wanted(exchange, self._tracing.newest, self._member, syncs_per_step),
            stride=self._tracing.wanted_stride,
        )

    def _switched(
        self, plan: PlanSpec, cause: Cause, reason: str, norm: float | None, directive: Directive | None
    ) -> Switched:
        place = {"step": self.since_step, "epoch": self.epoch, "num_ranks": self._member.world_size}
        return switched(plan, cause, reason, norm, directive, **place)

    def _refused(self, directive: Directive, refusals: tuple[Refusal, ...]) -> Refused:
        return Refused(
            at=time.time(), step=self.step, epoch=self.epoch, revision=directive.revision, refusals=refusals
        )

    def _speak(self, news: Event | None) -> None:
        """Report what all ranks know, once."""
        if news is not None and self._member.rank == 0:
            self._on_event(news)

    def _on_breach(self, reason: str) -> None:
        if self._guard_mode != "off":
            self._wish.ask(GUARD_ROLLBACK if self._guard_mode == "act" else GUARD_REPORT, reason)

    def _is_compressing(self) -> bool:
        return self._exchange().plan.codec != "none"

    def _exchange(self) -> Exchange:
        assert self.exchange is not None, "attach sets the exchange before the first hook can run"
        return self.exchange
