"""The callback for Lightning's Trainer, whichever of its two packages is in use."""

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gradwire.integrations.following import Follower, around, count

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError:
    from pytorch_lightning.callbacks import Callback

log = logging.getLogger("gradwire")


class GradwireCallback(Callback):
    """Attaches to the model that a Lightning `Trainer` wrapped, and follows `fit`.

        trainer = Trainer(strategy="ddp", callbacks=[GradwireCallback(run="resnet", server="http://host:8420")])

    A step is an optimizer step; its loss is what `training_step` returned, averaged over accumulated batches.
    Validation and saving are pauses, and what validation logs is reported. Beside each checkpoint file stands a
    folder `<file>.gradwire` with every rank's compression state, from which `fit(ckpt_path=...)` goes on bit for
    bit; it is removed with the file. With manual optimization a step is a batch in which an optimizer stepped, and
    the total is unknown.

    Args:
        options: Arguments of `gradwire.attach`; model, optimizer, scaler, steps and state come from the Trainer,
            and the run is named after the module's class unless it is given.

    Raises:
        AttachError: When training begins: the model cannot be attached to, and the text says why.
    """

    def __init__(self, **options: Any) -> None:
        self._follower = Follower(options)
        self._num_steps_seen = 0
        self._pause = contextlib.ExitStack()
        self._before_validation: dict[str, Any] = {}

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach, going on from the checkpoint if there is one; the Trainer has restored its own part."""
        around(trainer, "save_checkpoint", self._save)
        around(trainer.strategy, "remove_checkpoint", self._remove)
        self._num_steps_seen = trainer.global_step
        is_counted = pl_module.automatic_optimization
        self._follower.begin(
            trainer.strategy.model,
            trainer.optimizers[0] if len(trainer.optimizers) == 1 else None,
            run=type(pl_module).__name__,
            start_step=trainer.global_step if is_counted else None,
            total_steps=_total_steps(trainer) if is_counted else None,
            scaler=getattr(trainer.precision_plugin, "scaler", None),
            checkpoint=_beside(os.path.realpath(trainer.ckpt_path)) if trainer.ckpt_path else None,
        )

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Take the batch, and end the step if the optimizer has stepped."""
        samples, tokens = count(batch)
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._follower.note(loss, samples=samples, tokens=tokens)
        if trainer.global_step != self._num_steps_seen:
            self._num_steps_seen = trainer.global_step
            self._follower.step()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin a pause."""
        self._pause.enter_context(self._follower.pause("validation"))
        self._before_validation = dict(trainer.callback_metrics)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Report what this validation logged, and end the pause."""
        before = self._before_validation
        # What training logged stands in the same dictionary; its values are still the same objects.
        self._follower.evaluate(
            {
                name: value
                for name, value in trainer.callback_metrics.items()
                if name not in before or value is not before[name]
            }
        )
        self._pause.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the session as failed or interrupted."""
        self._pause.close()
        # A job that its cluster stops gets this one; as a kind of SystemExit it would pass for a good end.
        is_stopped = type(exception).__name__ == "SIGTERMException"
        self._follower.end(KeyboardInterrupt() if is_stopped else exception)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the session; checkpoints of the last step are written by now."""
        self._follower.end(None)

    def _save(
        self,
        original: Callable[..., Any],
        filepath: Any,
        weights_only: bool | None = None,
        *more: Any,
        **options: Any,
    ) -> None:
        with self._follower.pause("checkpoint"):
            original(filepath, weights_only, *more, **options)
            if weights_only or self._follower.session is None:
                return
            if "://" in str(filepath):
                log.warning(
                    "gradwire: %s is no local file, so the compression state is not saved with it", filepath
                )
                return
            self._follower.save(_beside(filepath))

    def _remove(self, original: Callable[..., Any], filepath: Any, *more: Any, **options: Any) -> None:
        original(filepath, *more, **options)
        # Every rank tries: where nodes share no file system, each has a folder of its own.
        shutil.rmtree(_beside(filepath), ignore_errors=True)


def _beside(filepath: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(filepath)}.gradwire")


def _total_steps(trainer: Any) -> int | None:
    """Return how many optimizer steps the Trainer plans; None for training without an end."""
    # It refuses to say where the number of accumulated batches changes between epochs.
    with contextlib.suppress(Exception):
        total = trainer.estimated_stepping_batches
        return int(total) if 0 < total < float("inf") else None
    return None
