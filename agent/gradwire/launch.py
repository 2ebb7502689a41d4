"""`gradwire run`: a script that knows nothing of Gradwire, with every DDP model attached."""

import functools
import logging
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
import torch.distributed as dist
from gradwire_compression import ddp
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gradwire import foreign, own_hooks
from gradwire.attachment import attach
from gradwire.errors import GradwireError
from gradwire.session import Session
from gradwire.settings import ENVIRONMENT
from gradwire.timing.phases import InertHook

log = logging.getLogger("gradwire")


def run_script(command: Sequence[str]) -> None:
    """Run `script.py ARGUMENTS` or `-m module ARGUMENTS` as the interpreter would, what it raises included.

    Every DDP model is attached at its first training pass, when its optimizer is there and all ranks take part; a
    step is a step of that optimizer. Loss, samples and tokens stay unknown. A model with a communication hook of
    its own is measured and not steered; one that the script attaches itself is left to it; one that cannot be
    attached trains as it would without Gradwire, and a warning says why.
    """
    is_module = command[0] == "-m"
    target, *arguments = command[1:] if is_module else command
    sys.argv = [target, *arguments]
    sys.path[0] = os.getcwd() if is_module else str(Path(target).resolve().parent)
    watched = _Watched(target if is_module else Path(target).stem)
    watched.begin()
    try:
        if is_module:
            runpy.run_module(target, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(target, run_name="__main__")
    except BaseException as error:
        watched.close(error)
        raise
    watched.close(None)


class _Watched:
    """What the script has made so far."""

    def __init__(self, run: str) -> None:
        self._run = None if os.environ.get(ENVIRONMENT["run"]) else run
        self._optimizers: WeakSet[Optimizer] = WeakSet()
        # Of what the optimizers hold, for when they are gone.
        self._kinds: set[type] = set()
        self._scalers: WeakSet[torch.amp.GradScaler] = WeakSet()
        self._sessions: list[Session] = []
        # Whether it was said what is measured, or why nothing is.
        self._is_told = False

    def begin(self) -> None:
        """Notice optimizers, scalers and models from now on, and the end of the process group."""
        _after_init(Optimizer, self._note)
        _after_init(torch.amp.GradScaler, self._scalers.add)
        _after_init(DistributedDataParallel, self._await_training)
        own_hooks.notice()
        destroy = dist.destroy_process_group

        @functools.wraps(destroy)
        def close_first(group: dist.ProcessGroup | None = None) -> None:
            if group is None or group is dist.group.WORLD:
                self.close(None)
            destroy(group)

        dist.destroy_process_group = close_first

    def close(self, error: BaseException | None) -> None:
        """End all sessions as the script ends."""
        self._declare()
        for session in self._sessions:
            session.__exit__(type(error) if error is not None else None, error, None)

    def _declare(self) -> None:
        """Say it if the script trained and nothing was attached, by it or by us."""
        is_parallel = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if self._is_told or not is_parallel or dist.get_rank() != 0:
            return
        if self._kinds:
            self._is_told = True
            log.warning("gradwire: nothing was measured: %s", foreign.guess(self._kinds))

    def _note(self, optimizer: Optimizer) -> None:
        self._optimizers.add(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._kinds.update((type(parameter), type(parameter.data)))

    def _await_training(self, model: DistributedDataParallel) -> None:
        def before_forward(*_: Any) -> None:
            # An evaluation before the first step may run on some ranks only, and to attach takes all of them.
            # The wrapper's own mode says little: Lightning leaves it at evaluation after its first look.
            if model.module.training and torch.is_grad_enabled():
                waiting.remove()
                self._is_told = True
                # The script, or an integration that it uses, may have attached by itself.
                own = own_hooks.own_hook(model)
                if not ddp.is_attached(model) and not (own is not None and own.is_watched):
                    self._attach(model)

        # Where the model is compiled, its hooks are traced; this one must run as it is.
        waiting = model.register_forward_pre_hook(InertHook(torch.compiler.disable(before_forward)))

    def _attach(self, model: DistributedDataParallel) -> None:
        number = len(self._sessions) + 1
        optimizer = self._optimizer_of(model)
        scalers = list(self._scalers)
        try:
            session = attach(
                model,
                optimizer=optimizer,
                run=self._run,
                name="model" if number == 1 else f"model {number}",
                scaler=scalers[0] if len(scalers) == 1 else None,
            )
        except GradwireError as error:
            log.warning("gradwire: a model is not attached: %s", error)
            return
        self._sessions.append(session)
        if optimizer is None:
            log.warning("gradwire: no optimizer holds the model's parameters, so its steps cannot be counted")
        else:
            optimizer.register_step_post_hook(InertHook(lambda *_: session.step()))

    def _optimizer_of(self, model: DistributedDataParallel) -> Optimizer | None:
        """Return the optimizer that holds most of the model's parameters, None if none holds any."""
        own = {id(parameter) for parameter in model.parameters()}

        def num_shared(optimizer: Optimizer) -> int:
            return sum(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])

        best = max(self._optimizers, key=num_shared, default=None)
        return best if best is not None and num_shared(best) else None


def _after_init(kind: type[Any], tell: Callable[[Any], object]) -> None:
    """Call `tell` with every object of `kind` that is made from now on."""
    init = kind.__init__

    @functools.wraps(init)
    def init_and_tell(self: Any, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        tell(self)

    kind.__init__ = init_and_tell
