"""`GradwireCallback` in real Lightning Trainers of two ranks: what is measured, saved and gone on from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.ranks import preload, run_ranks
from integrations.spools import Left

pytestmark = pytest.mark.distributed
preload("lightning.pytorch")

PLAN = {"codec": "onebit", "min_elements": 64, "every_bucket": True, "warmup_steps": 2}
NUM_STEPS = 12

# So that Lightning takes these processes for torchrun's and starts none of its own.
LAUNCHED = {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


def make_module(fails_at: int | None = None, package: str = "lightning.pytorch") -> Any:
    import importlib

    pl = importlib.import_module(package)

    class Small(pl.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
            self.losses: list[float] = []

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if self.global_step == fails_at:
                raise ArithmeticError("this step cannot be taken")
            loss = self.net(batch).square().mean()
            self.losses.append(loss.item())
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.log("val_loss", self.net(batch).square().mean(), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    return Small()


def loader(num_samples: int) -> Any:
    data = torch.randn(num_samples, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(data, batch_size=4)  # type: ignore[arg-type]


def make_trainer(folder: str, callbacks: list[Any], package: str = "lightning.pytorch") -> Any:
    import importlib

    return importlib.import_module(package).Trainer(
        accelerator="cpu",
        strategy="ddp",
        devices=2,
        max_epochs=3,
        accumulate_grad_batches=2,
        callbacks=callbacks,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def _train(rank: int, world_size: int, folder: str, spool: str, checkpoint: str | None) -> dict[str, Any]:
    from gradwire.integrations.lightning import GradwireCallback
    from lightning.pytorch.callbacks import ModelCheckpoint

    keep_all = ModelCheckpoint(f"{folder}/all", filename="{epoch}", save_top_k=-1)
    # Lightning wants settings of the two to differ, so this one has a mode, for which there is no metric.
    keep_last = ModelCheckpoint(f"{folder}/last", filename="{epoch}", save_top_k=1, mode="max")
    callback = GradwireCallback(plan=None if checkpoint else PLAN, spool=spool)
    trainer = make_trainer(folder, [keep_all, callback, keep_last])
    module = make_module()
    trainer.fit(module, loader(64), loader(16), ckpt_path=checkpoint)
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    return {"weights": weights, "losses": module.losses}


@pytest.mark.compatibility(
    framework="Lightning",
    package="lightning",
    proves="The callback attaches; compression, losses, validations, total steps and accumulated batches are "
    "right; a run resumed from a checkpoint file has the same bits as one without an interruption",
)
def test_lightning_is_followed_and_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    folder = str(tmp_path / "out")
    whole = run_ranks(2, _train, folder, str(tmp_path / "1"), None, environment=LAUNCHED)
    kept = {path.name for path in (tmp_path / "out" / "last").iterdir()}
    assert kept == {"epoch=2.ckpt", "epoch=2.ckpt.gradwire"}
    checkpoint = f"{folder}/all/epoch=1.ckpt"
    resumed = run_ranks(2, _train, folder, str(tmp_path / "2"), checkpoint, environment=LAUNCHED)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one["weights"], other["weights"])
        assert torch.equal(one["weights"], whole[0]["weights"])
    first, second = Left(tmp_path / "1"), Left(tmp_path / "2")

    assert (first.started.run_name, first.started.optimizer) == ("Small", "SGD")
    assert first.started.total_steps == NUM_STEPS
    assert first.codecs() == {"none", "onebit"}
    assert sum(window.num_steps for window in first.windows) == NUM_STEPS
    assert sum(window.samples for window in first.windows) == 64 * 3
    assert sum(window.seconds.pause for window in first.windows) > 0
    pairs = zip(whole[0]["losses"], whole[1]["losses"], strict=True)
    batches = [sum(pair) / 2 for pair in pairs]
    steps = {1 + i // 2: (batches[i] + batches[i + 1]) / 2 for i in range(0, len(batches), 2)}
    assert first.values("loss") == pytest.approx(steps, rel=1e-4)
    assert set(first.values("val_loss")) == {4, 8, 12}
    assert first.values("train_loss") == {}
    assert (first.ended.status, first.ended.last_step) == ("finished", NUM_STEPS)

    assert second.facts.run == first.facts.run
    assert (second.started.start_step, second.codecs()) == (8, {"onebit"})
    assert set(second.values("loss")) == {9, 10, 11, 12}


def _fail(rank: int, world_size: int, folder: str) -> str:
    from gradwire.integrations.lightning import GradwireCallback

    # The older of Lightning's two packages takes the callback of the newer one.
    package = "pytorch_lightning"
    trainer = make_trainer(folder, [GradwireCallback(spool=f"{folder}/spool", run="fails")], package)
    try:
        trainer.fit(make_module(fails_at=3, package=package), loader(64))
    except ArithmeticError as error:
        return str(error)
    return "trained"


def test_what_lightning_raises_ends_the_session_as_failed(tmp_path: Path) -> None:
    assert run_ranks(2, _fail, str(tmp_path), environment=LAUNCHED) == ["this step cannot be taken"] * 2
    left = Left(tmp_path / "spool")
    assert (left.ended.status, left.ended.exception, left.ended.last_step) == ("failed", "ArithmeticError", 3)
