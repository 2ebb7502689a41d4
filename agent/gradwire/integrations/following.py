"""What the integrations share: a session that follows a framework's training, from its first step to its end."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gradwire_compression import StateError
from torch.nn.parallel import DistributedDataParallel

from gradwire.attachment import attach
from gradwire.errors import AttachError, SettingError, UnsteerableError
from gradwire.session import Session
from gradwire.settings import ENVIRONMENT
from gradwire.states import load_state, save_state

log = logging.getLogger("gradwire")

# What an integration learns from its framework; whoever knows better attaches by hand.
_TOLD_BY_FRAMEWORK = ("model", "optimizer", "scaler", "start_step", "total_steps", "state")


class Follower:
    """One session at a time, driven by a framework's callbacks; without a session every method does nothing.

    Args:
        options: Arguments of `gradwire.attach` that the framework does not know.

    Raises:
        SettingError: An option is one that the framework tells.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        for name in _TOLD_BY_FRAMEWORK:
            if name in options:
                raise SettingError(f"{name} is known from the framework; leave it out")
        self._options = dict(options)
        self._model: torch.nn.Module | None = None
        self.session: Session | None = None
        # Of the step in progress.
        self._loss: Any = None
        self._samples = self._tokens = 0

    def begin(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | None,
        *,
        run: str,
        start_step: int | None,
        total_steps: int | None,
        scaler: Any = None,
        checkpoint: Path | None = None,
        better: Mapping[str, str] | None = None,
    ) -> None:
        """Attach, unless this model is attached already; on all ranks.

        Where there is one process only, or another framework exchanges the gradients, a warning says so and
        training goes on.

        Args:
            model: As the framework wrapped it.
            optimizer: As the framework wrapped it.
            run: Name if neither an option nor the environment gives one.
            start_step: Optimizer steps done so far, None if the framework does not count them as we do.
            total_steps: Optimizer steps until training ends.
            scaler: The GradScaler in use.
            checkpoint: Folder in which `save` may have left a state, None when training begins anew.
            better: Direction by metric.

        Raises:
            AttachError: The model cannot be attached to.
            gradwire_compression.StateError: The saved state cannot be gone on from.
        """
        if self.session is not None:
            if model is self._model:
                return
            self.end(None)
        if not _is_parallel():
            log.warning("gradwire: not attached: one process trains alone, so no gradients are exchanged")
            return
        options = {"better": better, **self._options}
        if not (options.get("run") or os.environ.get(ENVIRONMENT["run"])):
            options["run"] = run
        inner: Any = innermost(model)
        state = None
        if checkpoint is not None and isinstance(inner, DistributedDataParallel):
            state = _load_together(checkpoint, options.get("name") or "model", inner.process_group)
            _check_step(state, start_step, checkpoint)
        try:
            self.session = attach(
                inner,
                optimizer=innermost_optimizer(optimizer),
                scaler=scaler,
                start_step=0 if state is not None else start_step or 0,
                total_steps=total_steps,
                state=state,
                **options,
            )
        except UnsteerableError as error:
            # One line of a configuration chooses how a framework shards; the script need not know of it.
            log.warning("gradwire: not attached: %s", error)
        self._model = model

    def load(self, folder: str | Path, name: str) -> None:
        """Go on from what `save` left in `folder`; on all ranks.

        Raises:
            gradwire_compression.StateError: On every rank alike, if some rank's state is missing or damaged.
        """
        inner: Any = innermost(self._model) if self._model is not None else None
        if self.session is not None and (state := _load_together(Path(folder), name, inner.process_group)):
            self.session.load_state_dict(state)

    def note(self, loss: Any, *, samples: int, tokens: int = 0) -> None:
        """Take a micro-batch: its share of the step's loss (None: unknown), and what this rank put in."""
        if self.session is None:
            return
        if loss is not None:
            loss = loss.detach() if isinstance(loss, torch.Tensor) else loss
            self._loss = loss if self._loss is None else self._loss + loss
        self._samples += samples
        self._tokens += tokens

    def step(self) -> None:
        """End an optimizer step; everything noted since the last one belongs to it."""
        if self.session is not None:
            self.session.step(loss=self._loss, samples=self._samples, tokens=self._tokens)
            self._forget()

    def pause(self, reason: str) -> AbstractContextManager[None]:
        """Keep evaluation or checkpointing out of the step."""
        return contextlib.nullcontext() if self.session is None else self.session.pause(reason)

    def evaluate(self, metrics: Mapping[str, Any]) -> None:
        """Report those metrics that are numbers."""
        if self.session is not None:
            numbers = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
            if numbers:
                self.session.evaluate(**numbers)

    def save(self, folder: str | Path) -> None:
        """Save this rank's state beside the framework's checkpoint; between steps, on all ranks."""
        if self.session is not None:
            save_state(self.session.state_dict(), folder)

    def end(self, error: BaseException | None) -> None:
        """End the session with the status that `error` gives it."""
        if self.session is not None:
            self.session.__exit__(type(error) if error is not None else None, error, None)
            self.session = self._model = None
            self._forget()

    def _forget(self) -> None:
        self._loss, self._samples, self._tokens = None, 0, 0


def around(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Have `wrapper(original, ...)` run for the method `name` of this one object; asked again, nothing changes."""
    original = getattr(owner, name, None)
    if original is None or getattr(original, "gradwire_wrapper", None) == wrapper:
        return
    wrapped = functools.wraps(original)(functools.partial(wrapper, original))
    wrapped.gradwire_wrapper = wrapper  # type: ignore[attr-defined]
    setattr(owner, name, wrapped)


def innermost(model: torch.nn.Module) -> torch.nn.Module:
    """Return the model without what `torch.compile` puts around it."""
    while isinstance(inner := getattr(model, "_orig_mod", None), torch.nn.Module):
        model = inner
    return model


def innermost_optimizer(optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer | None:
    """Return the optimizer without what a framework puts around it: the inner one says which class it is."""
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def count(batch: Any) -> tuple[int, int]:
    """Return samples and tokens of a batch, padding included; 0 where it cannot be told without looking at values.

    Samples are the first dimension of its first tensor, tokens the elements of `input_ids`.
    """
    leaves = (leaf for leaf in torch.utils._pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor))
    first = next((leaf for leaf in leaves if leaf.dim() > 0), None)
    ids = batch.get("input_ids") if isinstance(batch, Mapping) else None
    samples = len(ids) if isinstance(ids, torch.Tensor) else len(first) if first is not None else 0
    return samples, ids.numel() if isinstance(ids, torch.Tensor) else 0


def _load_together(folder: Path, name: str, group: dist.ProcessGroup) -> dict[str, Any] | None:
    """Return this rank's state, None if no rank has one; collective, since one rank alone would be waited for.

    Raises:
        StateError: On every rank: a state is damaged, or some ranks' are missing.
    """
    state, problem = None, ""
    try:
        state = load_state(folder, name=name, group=group)
    except StateError as error:
        problem = str(error)
    told: list[tuple[bool, str]] = [(False, "")] * dist.get_world_size(group)
    dist.all_gather_object(told, (state is not None, problem), group=group)
    for rank, (_, other) in enumerate(told):
        if other:
            raise StateError(f"rank {rank}: {other}")
    missing = [rank for rank, (is_there, _) in enumerate(told) if not is_there]
    if missing and len(missing) < len(told):
        ranks = ", ".join(map(str, missing[:8]))
        raise StateError(f"{folder} holds no state for ranks {ranks}, and the other ranks have theirs")
    return state


def _check_step(state: Mapping[str, Any] | None, step: int | None, checkpoint: Path) -> None:
    """Refuse a state that was left from another checkpoint under the same name.

    Raises:
        AttachError: The step is another one.
    """
    if state is not None and step is not None and state["step"] != step:
        raise AttachError(
            f"the compression state in {checkpoint} is of step {state['step']} and the checkpoint of step {step}; "
            "remove the gradwire-*.pt files there to begin without what was owed"
        )


def _is_parallel() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _number(value: Any) -> float | None:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
