"""`GradwireCallback` in real `transformers.Trainer`s of two ranks: what is measured, saved and gone on from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.ranks import preload, run_ranks
from distributed.training import flat
from integrations.spools import Left

pytestmark = pytest.mark.distributed
preload("transformers.trainer", "accelerate", "transformers.models.bert.modeling_bert")

NUM_STEPS = 8
PLAN = {"codec": "int8", "min_elements": 64, "every_bucket": True, "warmup_steps": 2}


class Data(torch.utils.data.Dataset[Any]):
    """Sentences of eight tokens, of which only the first few may be readable."""

    def __init__(self, num_readable: int = 10_000) -> None:
        self._num_left = num_readable

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        self._num_left -= 1
        if self._num_left < 0:
            raise ArithmeticError("a sample cannot be read")
        generator = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(50, (8,), generator=generator), "labels": torch.tensor(index % 2)}


def make_trainer(folder: str, callbacks: list[Any], data: Data, **arguments: Any) -> Any:
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
    )
    given = TrainingArguments(
        output_dir=folder,
        max_steps=NUM_STEPS,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        logging_steps=1,
        learning_rate=0.01,
        use_cpu=True,
        ddp_backend="gloo",
        report_to=[],
        disable_tqdm=True,
        **arguments,
    )
    model = BertForSequenceClassification(config)
    return Trainer(model=model, args=given, train_dataset=data, eval_dataset=Data(), callbacks=callbacks)


def _train(rank: int, world_size: int, folder: str, spool: str, checkpoint: str | None) -> dict[str, Any]:
    from gradwire.integrations.transformers import GradwireCallback

    saving = {"save_strategy": "steps", "save_steps": 4, "eval_strategy": "steps", "eval_steps": 3}
    callback = GradwireCallback(plan=None if checkpoint else PLAN, spool=spool)
    trainer = make_trainer(folder, [callback], Data(), **saving)
    trainer.train(resume_from_checkpoint=checkpoint)
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    return {
        "weights": flat(trainer.model),
        "losses": {entry["step"]: entry["loss"] for entry in logs},
        "eval_losses": {entry["step"]: entry["eval_loss"] for entry in evaluations},
    }


@pytest.mark.compatibility(
    framework="Hugging Face Trainer",
    package="transformers",
    proves="The callback attaches; compression, losses, evaluations, total steps and gradient accumulation are "
    "right; a run resumed from the Trainer's checkpoint has the same bits as one without an interruption",
)
def test_trainer_is_followed_and_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    folder = str(tmp_path / "bert")
    whole = run_ranks(2, _train, folder, str(tmp_path / "1"), None)
    resumed = run_ranks(2, _train, folder, str(tmp_path / "2"), f"{folder}/checkpoint-4")
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one["weights"], other["weights"])
        assert torch.equal(one["weights"], whole[0]["weights"])
    first, second = Left(tmp_path / "1"), Left(tmp_path / "2")

    assert first.started.run_name == "bert"
    assert first.started.optimizer == "AdamW"
    assert (first.started.total_steps, first.started.better) == (NUM_STEPS, {"eval_loss": "lower"})
    assert first.codecs() == {"none", "int8"}
    assert sum(window.num_steps for window in first.windows) == NUM_STEPS
    assert sum(window.samples for window in first.windows) == NUM_STEPS * 2 * 2 * 4
    assert sum(window.tokens for window in first.windows) == NUM_STEPS * 2 * 2 * 4 * 8
    assert sum(window.seconds.pause for window in first.windows) > 0
    assert first.values("loss") == pytest.approx(whole[0]["losses"], rel=1e-3)
    assert first.values("eval_loss") == pytest.approx(whole[0]["eval_losses"], rel=1e-3)
    assert set(first.values("eval_loss")) == {3, 6, 8}
    assert (first.ended.status, first.ended.last_step) == ("finished", NUM_STEPS)

    assert second.facts.run == first.facts.run
    assert (second.started.start_step, second.codecs()) == (4, {"int8"})
    assert set(second.values("loss")) == {5, 6, 7, 8}


def _fail(rank: int, world_size: int, folder: str) -> str:
    from gradwire.integrations.transformers import GradwireCallback

    trainer = make_trainer(
        f"{folder}/out", [GradwireCallback(spool=f"{folder}/spool", run="fails")], Data(num_readable=20)
    )
    try:
        trainer.train()
    except ArithmeticError as error:
        return str(error)
    return "trained"


def test_what_a_trainer_raises_ends_the_session_as_failed(tmp_path: Path) -> None:
    said = run_ranks(2, _fail, str(tmp_path))
    assert said == ["a sample cannot be read"] * 2
    left = Left(tmp_path / "spool")
    assert (left.started.run_name, left.started.plan.codec) == ("fails", "none")
    assert (left.ended.status, left.ended.exception) == ("failed", "ArithmeticError")


def _alone(rank: int, world_size: int, folder: str) -> int:
    from gradwire.integrations.transformers import GradwireCallback

    trainer = make_trainer(f"{folder}/out", [GradwireCallback(spool=f"{folder}/spool")], Data())
    trainer.train()
    return int(trainer.state.global_step)


def test_trainer_that_trains_alone_is_left_alone(tmp_path: Path) -> None:
    assert run_ranks(1, _alone, str(tmp_path)) == [NUM_STEPS]
    assert not (tmp_path / "spool").exists()


def _twice(rank: int, world_size: int, folder: str) -> tuple[torch.Tensor, int]:
    from gradwire.integrations.transformers import GradwireCallback

    trainer = make_trainer(f"{folder}/out", [GradwireCallback(spool=f"{folder}/spool", plan=PLAN)], Data())
    trainer.train()
    first = trainer.model_wrapped
    trainer.train()
    assert trainer.model_wrapped is first
    return flat(trainer.model), trainer.state.global_step


def test_trainer_that_trains_twice_is_two_runs(tmp_path: Path) -> None:
    (one, num_steps), (other, _) = run_ranks(2, _twice, str(tmp_path))
    assert torch.equal(one, other)
    assert num_steps == NUM_STEPS
    lefts = [Left(folder) for folder in (tmp_path / "spool").iterdir()]
    assert len(lefts) == 2
    for left in lefts:
        assert left.codecs() == {"none", "int8"}
        assert (left.ended.status, left.ended.last_step) == ("finished", NUM_STEPS)
