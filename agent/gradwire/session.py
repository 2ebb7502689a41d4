"""The session: what training code holds after `attach`."""

import contextlib
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal

from gradwire_compression import seal
from gradwire_protocol.identity import validate_name
from gradwire_protocol.records import AttemptEnded, Points

from gradwire import console, lineage, wording
from gradwire.clocks import WallClock
from gradwire.endings import AtExit, Status, status_of
from gradwire.left_out import LeftOut
from gradwire.losses import Losses
from gradwire.membership import Membership
from gradwire.outlet import Outlet
from gradwire.steering.rehearsal import Rehearsal
from gradwire.steering.steering import Steering
from gradwire.timing.phases import Phases
from gradwire.timing.recorder import Recorder
from gradwire.timing.trace import StepTrace
from gradwire.transport.reporter import DeliverySummary

log = logging.getLogger("gradwire")

# A dead server must not hold up the end of training longer than this, seconds.
CLOSE_SECONDS = 5.0
# Steps between two looks at what hardly ever happens.
_LOOK_EVERY = 8


class Session:
    """One attached model: counts steps, hands over what was measured, and ends the attempt.

    Nothing here raises into training; a fault of the agent is logged once per kind and training goes on. Made by
    `gradwire.attach`, used by the training thread only.
    """

    def __init__(
        self,
        *,
        model: str,
        membership: Membership,
        phases: Phases,
        recorder: Recorder,
        steering: Steering,
        losses: Losses,
        outlet: Outlet,
        left_out: LeftOut,
        rehearsal: Rehearsal,
        hooks: list[Any],
    ) -> None:
        self._model = model
        self._membership = membership
        self._phases = phases
        self._recorder = recorder
        self._steering = steering
        self._losses = losses
        self._outlet = outlet
        self._left_out = left_out
        self._rehearsal = rehearsal
        self._hooks = hooks
        self._pid = os.getpid()
        self._step_started_at = time.time()
        self._wall_clock = WallClock()
        self._is_closed = False
        self._complaints: set[str] = set()
        self.summary: DeliverySummary | None = None
        self._at_exit = AtExit(self._close_at_exit)
        # The traceback of what ended the script stays the last thing on the console.
        self._is_silent = False

    @property
    def run_id(self) -> str:
        """Id of the run, the same on every rank."""
        return self._membership.run

    @property
    def codec(self) -> str:
        """Codec in use on all ranks."""
        return self._steering.codec

    @property
    def current_step(self) -> int:
        """Number of the step in progress; the first one is `start_step` + 1."""
        return self._steering.step

    def step(self, *, loss: Any = None, samples: int = 0, tokens: int = 0) -> None:
        """End a training step; call it once per optimizer step on every rank.

        Args:
            loss: Number or tensor of one element on any device; read later, never synchronised.
            samples: Training samples of this rank in the step.
            tokens: Tokens of this rank in the step.
        """
        try:
            self._end_step(loss, samples, tokens)
        except Exception as error:
            self._complain("step", error)

    def _end_step(self, loss: Any, samples: int, tokens: int) -> None:
        began = time.perf_counter()
        steering = self._steering
        if loss is not None:
            self._losses.note(steering.step, loss, float(samples or tokens or 1))
        step, is_traced = steering.step, self._phases.is_traced
        epoch, codec = steering.epoch, steering.codec
        is_settling, is_check = steering.is_settling, steering.is_check
        steering.step += 1
        marks, syncs, end = self._phases.take(traces_next=steering.traces_next())
        trace = StepTrace(
            step=step,
            epoch=epoch,
            codec=codec,
            is_settling=is_settling,
            marks=marks,
            end=end,
            started_at=self._step_started_at,
            agent_seconds=steering.agent_seconds,
            samples=int(samples),
            tokens=int(tokens),
            syncs=syncs,
            is_check=is_check,
            is_traced=is_traced,
        )
        self._step_started_at = time.time()
        self._recorder.add(trace)
        if step % _LOOK_EVERY == 0:
            self._look_around(step)
        steering.agent_seconds = time.perf_counter() - began
        # It keeps to a share of its own, which is no reason to trace fewer steps.
        self._rehearsal.run(self._phases, step)

    def _look_around(self, step: int) -> None:
        if jumped := self._wall_clock.jump(step, self._membership.rank):
            self._outlet.on_event(jumped)
        problem = self._left_out.look()
        # All ranks unfreeze alike; one of them says so.
        if problem and self._membership.rank == 0:
            log.warning("gradwire: %s", problem)
            self._steering.tell("unfrozen", problem, level="error", step=step)

    def evaluate(self, **metrics: float) -> None:
        """Report evaluation metrics of the last finished step; rank 0's values count, others' are ignored."""
        if self._membership.rank != 0:
            return
        with self._guarded("evaluate"):
            for name, value in metrics.items():
                self._outlet.on_points(self._point(validate_name(name, field="metric"), float(value)))

    @contextlib.contextmanager
    def pause(self, reason: str = "") -> Iterator[None]:
        """Keep evaluation or checkpointing out of the step's phases and out of throughput."""
        self._phases.pause()
        try:
            yield
        finally:
            self._phases.resume()

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank needs to go on after a restart as if it had never stopped; call it between steps.

        Plain values and tensors: what the codec still owes to each parameter, the plan, the step and the run. They
        load with `weights_only=True` and belong to this rank; `save_state` keeps them in a file of its own, and
        `attach(state=...)` goes on from them.
        """
        state = self._steering.exchange_state()
        return seal({**state, "run": self.run_id, "model": self._model, "step": self.current_step - 1})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved state, between steps, on all ranks; what the codec owes now is dropped.

        The state's plan comes into use. This attempt stays one of its own run; to go on with the run of the state,
        give it to `attach`.

        Raises:
            gradwire_compression.StateError: The state is damaged, or belongs to another model or another save.
            gradwire_compression.PlanError: Its plan is not acceptable here.
        """
        self._steering.adopt_state(state)

    def rollback(self, reason: str = "") -> None:
        """Ask all ranks to go back to uncompressed training at the next pulse."""
        self._steering.request_rollback(reason or "asked for by the training script")

    def close(self, *, status: Status = "finished", exception: str = "") -> DeliverySummary | None:
        """End the attempt and deliver what is left; returns within about five seconds, also with a dead server.

        Compression ends on all ranks together at the next exchange, should training go on.
        """
        if self._is_closed or os.getpid() != self._pid:
            return self.summary
        self._is_closed = True
        self._at_exit.cancel()
        with self._guarded("close"):
            self._end(status, exception)
        return self.summary

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        status, exception = status_of(error)
        self.close(status=status, exception=exception)

    def _end(self, status: Status, exception: str) -> None:
        lineage.end(self._membership.attempt)
        self._steering.request_stop()
        if status == "finished":
            self._steering.finish_pulse()
        for hook in self._hooks:
            hook.remove()
        self._recorder.close(CLOSE_SECONDS / 2)
        ended = AttemptEnded(
            at=time.time(), last_step=self._steering.step - 1, status=status, exception=exception[:200]
        )
        self.summary = self._outlet.close(ended, CLOSE_SECONDS)
        # Each node has a spool of its own.
        if not self._is_silent and (self._membership.rank == 0 or self.summary.spool_path is not None):
            console.say(wording.ended(self._membership.run_name, ended, self.summary))

    def _close_at_exit(self, status: Status, exception: str) -> None:
        self._is_silent = status != "finished"
        self.close(status=status, exception=exception)

    def _point(self, name: str, value: float) -> Points:
        step = self._steering.step - 1
        if math.isfinite(value):
            return Points(name=name, steps=(step,), values=(value,), is_evaluation=True)
        kind: Literal["nan", "+inf", "-inf"] = "nan" if math.isnan(value) else "+inf" if value > 0 else "-inf"
        return Points(name=name, steps=(step,), values=(None,), kinds={"0": kind}, is_evaluation=True)

    @contextlib.contextmanager
    def _guarded(self, what: str) -> Iterator[None]:
        """Keep the agent's own faults out of training; each kind is logged once."""
        try:
            yield
        except Exception as error:
            self._complain(what, error)

    def _complain(self, what: str, error: Exception) -> None:
        kind = f"{what}: {type(error).__name__}"
        if kind not in self._complaints:
            self._complaints.add(kind)
            log.exception("gradwire: %s failed; training is not affected", what)
