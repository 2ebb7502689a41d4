"""One arm of a trial inside a training process: gives the plan, counts steps, ends training after the last."""

import atexit
import dataclasses
import functools
import logging
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from gradwire.errors import AttachError
from gradwire.own_hooks import own_hook
from gradwire.session import Session
from gradwire.settings import Settings
from gradwire.steering.checksums import checksums, fold
from gradwire.timing.phases import InertHook
from gradwire.trial.losses import BackwardLosses
from gradwire.trial.records import Order, RankResult, folder_of_environment, read_order, write_result
from gradwire.wiring import connect

log = logging.getLogger("gradwire")


class TrialEnd(SystemExit):
    """Ends a training process in order after the steps of a trial, with exit code 0.

    A `SystemExit`, so that `finally` and `with` blocks of the script run, on all ranks alike, and code that catches
    errors does not take it for one.
    """

    def __init__(self) -> None:
        super().__init__(0)


class Arm:
    """The first model that this process attaches is counted; all models get the arm's plan."""

    def __init__(self, folder: Path, order: Order) -> None:
        self._folder = folder
        self._order = order
        self._sessions: list[Session] = []
        self._followed: Session | None = None
        self._rank, self._world_size = 0, 1
        self._device = torch.device("cpu")
        self._checksum = ""
        self._start_step = 0
        self._ended_at: list[float] = []
        self._losses: list[Tensor | float] = []
        self._is_cut = False

    @functools.cached_property
    def losses(self) -> BackwardLosses:
        """The losses that the script calls backward on; watched from the first use on."""
        return BackwardLosses()

    @property
    def seed(self) -> int:
        """The trial's seed, the same in both arms."""
        return self._order.seed

    def settings(self, settings: Settings) -> Settings:
        """Return the settings of a model in this arm: the arm's run and plan whatever the script says.

        A checkpoint's compression state is left out, so that both arms begin with nothing owed. No uncompressed
        steps come in between, neither to compare nor because quality suffers: that is what a trial is to show.
        """
        return dataclasses.replace(
            settings,
            run=self._order.run_name,
            run_id=self._order.run,
            plan=self._order.plan,
            state=None,
            check_share=0.0,
            guard="report",
        )

    def attach(
        self, model: DistributedDataParallel, optimizer: torch.optim.Optimizer | None, settings: Settings
    ) -> Session:
        """Attach a model in this arm, and count its session's steps.

        Raises:
            AttachError: The model cannot be attached to, or is averaged by a hook that no plan changes.
        """
        if (own := own_hook(model)) is not None:
            raise AttachError(
                f"the model has a communication hook of its own, {own.name}: a trial has nothing to compare it with"
            )
        session = connect(model, optimizer, self.settings(settings))
        self.follow(session, model)
        return session

    def follow(self, session: Session, model: DistributedDataParallel) -> None:
        """Count the session's steps; of several models, the first one's."""
        self._sessions.append(session)
        if self._followed is not None:
            return
        self._followed = session
        self._rank = dist.get_rank(model.process_group)
        self._world_size = dist.get_world_size(model.process_group)
        self._device = next(model.parameters()).device
        self._start_step = session.current_step - 1
        self._note_start(model)
        step = session.step

        @functools.wraps(step)
        def counted_step(**given: Any) -> None:
            watched = self.losses.take()
            if given.get("loss") is None:
                given["loss"] = watched
            step(**given)
            self._after_step(given["loss"])

        session.step = counted_step  # type: ignore[method-assign]
        atexit.register(self.write)

    def write(self) -> None:
        """Write what this rank did so far into the arm's folder."""
        if self._followed is None or not self._ended_at:
            return
        result = RankResult(
            rank=self._rank,
            world_size=self._world_size,
            device=self._device.type,
            checksum=self._checksum,
            start_step=self._start_step,
            step_seconds=tuple(
                after - before for before, after in zip(self._ended_at, self._ended_at[1:], strict=False)
            ),
            losses=tuple(float(loss) for loss in self._losses),
            is_cut=self._is_cut,
        )
        write_result(self._folder, result)

    def _note_start(self, model: DistributedDataParallel) -> None:
        """Note what training begins with: now and, as a checkpoint may be loaded later, at its first pass again."""

        def before_forward(*_: Any) -> None:
            if model.training and torch.is_grad_enabled():
                waiting.remove()
                if not self._ended_at:
                    self._checksum = checksum_of(model)

        self._checksum = checksum_of(model)
        waiting = model.register_forward_pre_hook(InertHook(torch.compiler.disable(before_forward)))

    def _after_step(self, loss: Any) -> None:
        if self._is_cut:
            # The script caught what should have ended it; nothing else does.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
        self._losses.append(_kept(loss))
        is_last = len(self._ended_at) + 1 >= self._order.num_steps
        if self._device.type == "cuda" and (is_last or not self._ended_at):
            # In between the host runs ahead of the device, as it would without a trial.
            torch.cuda.synchronize(self._device)
        self._ended_at.append(time.perf_counter())
        if is_last:
            self._end()

    def _end(self) -> None:
        """End training: all ranks are here, since all took part in the exchange of this step."""
        self._is_cut = True
        self.write()
        for session in self._sessions:
            session.close()
        log.info("gradwire: the trial's %d steps are done; training ends here", self._order.num_steps)
        raise TrialEnd


@functools.cache
def arm_of_environment() -> Arm | None:
    """Return the arm that this process belongs to; None outside `gradwire trial`."""
    folder = folder_of_environment()
    return None if folder is None else Arm(folder, read_order(folder))


def checksum_of(model: torch.nn.Module) -> str:
    """Return one number, as text, of all parameters and buffers: equal for equal bits.

    Cost: reads every byte once; waits for the device.
    """
    tensors = [
        tensor
        for tensor in (*model.parameters(), *model.buffers())
        if tensor.layout == torch.strided and not tensor.is_meta and tensor.numel()
    ]
    devices = sorted({tensor.device for tensor in tensors}, key=str)
    numbers = [checksums([tensor for tensor in tensors if tensor.device == device]).cpu() for device in devices]
    return f"{fold(torch.cat(numbers)):012x}" if numbers else ""


def _kept(loss: Any) -> Tensor | float:
    """Return the loss as it can be kept until the end without holding the pass it came from."""
    if isinstance(loss, Tensor):
        return loss.detach().clone() if loss.numel() == 1 else math.nan
    return math.nan if loss is None else float(loss)
