"""The callback for `transformers.Trainer`, and for whatever is built on it."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from gradwire.integrations.following import Follower, around, count

_PREFIX = "eval_"
# What the Trainer puts beside the metrics of an evaluation; its speed is not the model's quality.
_NOT_METRICS = ("_runtime", "_per_second", "_compilation_time", "_preparation_time")


class GradwireCallback(TrainerCallback):
    """Attaches to the model that a `Trainer` wrapped, and follows its training.

        trainer = Trainer(model, args, train_dataset=data, callbacks=[GradwireCallback(server="http://host:8420")])

    A step is an optimizer step; its loss is the one that the Trainer logs. Evaluation and saving are pauses, what
    an evaluation finds is reported, and each checkpoint holds every rank's compression state, from which
    `train(resume_from_checkpoint=...)` goes on bit for bit. A process that trains alone is left alone.

    Args:
        options: Arguments of `gradwire.attach`; model, optimizer, scaler, steps and state come from the Trainer,
            and the run is named after `run_name` or the output folder unless it is given.

    Raises:
        AttachError: When training begins: the model cannot be attached to, and the text says why.
    """

    def __init__(self, **options: Any) -> None:
        self._follower = Follower(options)

    def on_init_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Have what `train` raises end the session; a callback that is added later learns of it at exit only."""
        trainer, _checkpoint = _trainer()
        around(trainer, "train", self._train)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, *, optimizer: Any, **_: Any
    ) -> None:
        """Attach, going on from the checkpoint if there is one."""
        trainer, checkpoint = _trainer()
        # For these there are no events, or late ones.
        around(trainer, "training_step", self._training_step)
        around(trainer, "evaluate", self._evaluate)
        around(trainer, "_save_checkpoint", self._save_checkpoint)
        self._follower.begin(
            trainer.model_wrapped,
            optimizer,
            run=getattr(args, "run_name", None) or Path(args.output_dir).resolve().name,
            start_step=state.global_step,
            total_steps=state.max_steps,
            scaler=getattr(trainer.accelerator, "scaler", None),
            checkpoint=Path(checkpoint) if checkpoint else None,
            better=_better(args),
        )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the step."""
        self._follower.step()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **_: Any,
    ) -> None:
        """Report the metrics."""
        self._follower.evaluate(
            {
                name: value
                for name, value in metrics.items()
                if name.startswith(_PREFIX) and not name.endswith(_NOT_METRICS)
            }
        )

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Save this rank's state into the Trainer's checkpoint, if it is one to go on from."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        if folder.is_dir() and not args.save_only_model:
            with self._follower.pause("checkpoint"):
                self._follower.save(folder)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """End the session."""
        self._follower.end(None)

    def _train(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            return original(*arguments, **options)
        except BaseException as error:
            self._follower.end(error)
            raise

    def _training_step(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        # The Trainer's own overrides may take labels out of the inputs.
        samples, tokens = count(options.get("inputs", arguments[1] if len(arguments) > 1 else None))
        loss = original(*arguments, **options)
        self._follower.note(loss, samples=samples, tokens=tokens)
        return loss

    def _evaluate(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with self._follower.pause("evaluation"):
            return original(*arguments, **options)

    def _save_checkpoint(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with self._follower.pause("checkpoint"):
            return original(*arguments, **options)


def _trainer() -> tuple[Any, str | None]:
    """Return the Trainer that is calling, and the checkpoint that it goes on from.

    No event carries them: not the model as it was wrapped, not the scaler, not the folder.
    """
    frame = sys._getframe()
    trainer: Any = None
    while (frame := frame.f_back) is not None:  # type: ignore[assignment]
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            trainer = owner
            if "resume_from_checkpoint" in frame.f_locals:
                return trainer, frame.f_locals["resume_from_checkpoint"]
    assert trainer is not None, "a Trainer calls its callbacks from its own methods"
    return trainer, None


def _better(args: TrainingArguments) -> dict[str, str]:
    """Return the direction of the loss, and of the metric by which the best model is chosen."""
    directions = {f"{_PREFIX}loss": "lower"}
    if metric := args.metric_for_best_model:
        name = metric if metric.startswith(_PREFIX) else f"{_PREFIX}{metric}"
        directions[name] = "higher" if args.greater_is_better else "lower"
    return directions
