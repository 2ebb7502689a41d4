"""`accelerate.attach` in real loops of two ranks: what is measured, saved and gone on from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.ranks import preload, run_ranks
from integrations.spools import Left

pytestmark = pytest.mark.distributed
preload("accelerate")

PLAN = {"codec": "int8", "min_elements": 64, "every_bucket": True, "warmup_steps": 2}
NUM_STEPS = 8


def _train(rank: int, world_size: int, folder: str, spool: str, first_step: int) -> dict[str, Any]:
    from accelerate import Accelerator
    from gradwire.integrations.accelerate import attach

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(net, optimizer)
    is_resumed = first_step > 1
    session = attach(
        accelerator,
        model,
        optimizer,
        run="loop",
        plan=None if is_resumed else PLAN,
        checkpoint=folder if is_resumed else None,
        total_steps=NUM_STEPS,
        spool=spool,
    )
    losses = []
    with session:
        if is_resumed:
            accelerator.load_state(folder)
        for micro_batch in range(2 * (first_step - 1), 2 * NUM_STEPS):
            data = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * micro_batch + rank))
            with accelerator.accumulate(model):
                loss = model(data).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            session.step(loss=loss, samples=len(data))
            losses.append(loss.item())
            if not is_resumed and micro_batch == 2 * 4 - 1:
                accelerator.save_state(folder)
        session.evaluate(accuracy=torch.tensor(0.5))
    weights = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    return {"weights": weights, "losses": losses}


@pytest.mark.compatibility(
    framework="Accelerate",
    package="accelerate",
    proves="`attach` takes what `prepare` returned; compression, losses and gradient accumulation are right; a run "
    "resumed by `load_state` has the same bits as one without an interruption",
)
def test_accelerate_is_followed_and_goes_on_from_its_checkpoint_with_the_same_bits(tmp_path: Path) -> None:
    folder = str(tmp_path / "state")
    whole = run_ranks(2, _train, folder, str(tmp_path / "1"), 1)
    resumed = run_ranks(2, _train, folder, str(tmp_path / "2"), 5)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one["weights"], other["weights"])
        assert torch.equal(one["weights"], whole[0]["weights"])
    first, second = Left(tmp_path / "1"), Left(tmp_path / "2")

    assert (first.started.total_steps, first.started.optimizer) == (NUM_STEPS, "AdamW")
    assert first.codecs() == {"none", "int8"}
    assert sum(window.num_steps for window in first.windows) == NUM_STEPS
    assert sum(window.samples for window in first.windows) == NUM_STEPS * 2 * 2 * 4
    assert sum(window.seconds.pause for window in first.windows) > 0
    batches = [sum(pair) / 2 for pair in zip(whole[0]["losses"], whole[1]["losses"], strict=True)]
    steps = {1 + i // 2: (batches[i] + batches[i + 1]) / 2 for i in range(0, len(batches), 2)}
    assert first.values("loss") == pytest.approx(steps, rel=1e-4)
    assert first.values("accuracy") == {NUM_STEPS: 0.5}
    assert (first.ended.status, first.ended.last_step) == ("finished", NUM_STEPS)

    assert second.facts.run == first.facts.run
    assert (second.started.start_step, second.codecs()) == (4, {"int8"})
    assert set(second.values("loss")) == {5, 6, 7, 8}


def _alone(rank: int, world_size: int, folder: str) -> bool:
    from accelerate import Accelerator
    from gradwire.integrations.accelerate import attach

    accelerator = Accelerator(cpu=True)
    net = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
    with attach(accelerator, model, optimizer, spool=folder) as session:
        accelerator.backward(model(torch.ones(2, 4)).sum())
        optimizer.step()
        session.step(samples=2)
        accelerator.save_state(f"{folder}/state")
        return session.session is None


def test_loop_that_trains_alone_is_left_alone(tmp_path: Path) -> None:
    assert run_ranks(1, _alone, str(tmp_path)) == [True]
    assert not list(tmp_path.rglob("stream.json"))
