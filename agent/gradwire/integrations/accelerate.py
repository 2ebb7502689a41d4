"""Attaching to a model that an `accelerate.Accelerator` prepared."""

from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from gradwire.integrations.following import Follower
from gradwire.session import Session


def attach(
    accelerator: Any,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    checkpoint: str | Path | None = None,
    total_steps: int | None = None,
    start_step: int = 0,
    **options: Any,
) -> "AcceleratedSession":
    """Attach to what `accelerator.prepare` returned; a process that trains alone gets a session that does nothing.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        session = attach(accelerator, model, optimizer, run="bert", total_steps=1000)
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            session.step(loss=loss, samples=len(batch["labels"]))

    `accelerator.save_state` saves every rank's compression state too, and `accelerator.load_state` loads it.

    Args:
        accelerator: The one that prepared model and optimizer.
        model: As prepared.
        optimizer: As prepared.
        checkpoint: Folder of `save_state` that this training goes on from: the run, the step and the plan of then.
        total_steps: Optimizer steps until training ends.
        start_step: Optimizer steps done so far; with a checkpoint it is known from there.
        options: Further arguments of `gradwire.attach`.

    Raises:
        AttachError: The model cannot be attached to, and the text says why.
    """
    follower = Follower(options)
    follower.begin(
        model,
        optimizer,
        run=Path(accelerator.project_dir or "unnamed").resolve().name,
        start_step=start_step or None,
        total_steps=total_steps,
        scaler=accelerator.scaler,
        checkpoint=Path(checkpoint) if checkpoint is not None else None,
    )
    return AcceleratedSession(accelerator, follower, options.get("name") or "model")


class AcceleratedSession:
    """A session that counts optimizer steps by itself; made by `attach`."""

    def __init__(self, accelerator: Any, follower: Follower, name: str) -> None:
        self._accelerator = accelerator
        self._follower = follower
        self._name = name
        # Losses of the micro-batches of the step in progress.
        self._losses: list[Any] = []
        self._hooks = [
            accelerator.register_save_state_pre_hook(self._save),
            accelerator.register_load_state_pre_hook(self._load),
        ]

    @property
    def session(self) -> Session | None:
        """The session itself; None in a process that trains alone, and after `close`."""
        return self._follower.session

    def step(self, *, loss: Any = None, samples: int = 0, tokens: int = 0) -> None:
        """Take a micro-batch, after its `accumulate` block; its step ends when the gradients were synchronised.

        The arguments are those of `Session.step`; the loss of the step is the mean over its micro-batches.
        """
        if loss is not None:
            self._losses.append(loss.detach() if isinstance(loss, torch.Tensor) else loss)
        self._follower.note(None, samples=samples, tokens=tokens)
        if self._accelerator.sync_gradients:
            if self._losses:
                self._follower.note(sum(self._losses) / len(self._losses), samples=0)
            self._losses.clear()
            self._follower.step()

    def evaluate(self, **metrics: Any) -> None:
        """As `Session.evaluate`; tensors of one element are numbers too."""
        self._follower.evaluate(metrics)

    def pause(self, reason: str = "") -> AbstractContextManager[None]:
        """As `Session.pause`."""
        return self._follower.pause(reason)

    def close(self) -> None:
        """End the session; also at the process's exit."""
        self.__exit__(None, None, None)

    def __enter__(self) -> "AcceleratedSession":
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._follower.end(error)

    def _save(self, _models: Any, _weights: Any, output_dir: str) -> None:
        with self._follower.pause("checkpoint"):
            self._follower.save(output_dir)

    def _load(self, _models: Any, input_dir: str) -> None:
        self._follower.load(input_dir, self._name)
