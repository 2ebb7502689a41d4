"""A model that is attached again after its session was closed, as several trainings in one process do."""

from pathlib import Path
from typing import Any

import gradwire
import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, train_step

pytestmark = pytest.mark.distributed

PLAN = {"codec": "int8", "min_elements": 64, "every_bucket": True}


def _again(rank: int, world_size: int, folder: str) -> dict[str, Any]:
    ddp, optimizer = make_model()
    first = attach(ddp, optimizer, folder, plan=PLAN)
    try:
        attach(ddp, optimizer, folder)
    except gradwire.AttachError as error:
        refusal = str(error)
    for step in range(3):
        first.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    first.close()
    # What the first session's codec owes ends with it.
    second = attach(ddp, optimizer, folder, plan=PLAN)
    owed = second._steering.exchange.owed()
    codecs = []
    for step in range(3, 6):
        second.step(loss=train_step(ddp, optimizer, batch(rank, step)))
        codecs.append(second.codec)
    second.close()
    train_step(ddp, optimizer, batch(rank, 6))
    runs = {first.run_id, second.run_id}
    return {"weights": flat(ddp), "refusal": refusal, "codecs": codecs, "owed": owed, "runs": runs}


def test_model_is_attached_again_after_its_session_was_closed(tmp_path: Path) -> None:
    first, second = run_ranks(2, _again, str(tmp_path))
    assert torch.equal(first["weights"], second["weights"])
    assert first["refusal"] == "the DDP model is attached already; close its session first"
    assert first["codecs"] == ["int8"] * 3
    assert first["owed"] == {}
    assert len(first["runs"]) == 2
