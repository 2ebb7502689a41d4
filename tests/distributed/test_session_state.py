"""A session that goes on after a restart: the same run, the same plan, the same bits."""

import logging
import re
from typing import Any

import gradwire
import pytest
import torch
import torch.distributed.checkpoint as dcp
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, pulse_with_every_exchange, train_step
from gradwire_compression import Plan, StateError
from gradwire_protocol.records import Event, Result
from torch.distributed.checkpoint import FileSystemReader

pytestmark = pytest.mark.distributed

PLAN = {"codec": "int8", "min_elements": 64, "warmup_steps": 3}


def _train(rank: int, world_size: int, folder: str, first: int, last: int) -> dict[str, Any]:
    """Train from step `first` to `last`, going on from the folder if there is a state in it."""
    ddp, optimizer = make_model()
    if first > 1:
        saved = torch.load(f"{folder}/weights{rank}.pt", weights_only=True)
        ddp.module.load_state_dict(saved)
    state = gradwire.load_state(folder)
    session = attach(ddp, optimizer, folder, plan=PLAN if state is None else None, state=state)
    assert session.current_step == first
    codecs = []
    for step in range(first, last + 1):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
        codecs.append(session.codec)
    gradwire.save_state(session.state_dict(), folder)
    torch.save(ddp.module.state_dict(), f"{folder}/weights{rank}.pt")
    run_id = session.run_id
    session.close()
    return {"weights": flat(ddp), "codecs": codecs, "run": run_id, "wanted": (first, last)}


def test_resumed_training_is_the_same_run_with_the_same_bits(tmp_path):
    folders = {name: tmp_path / name for name in ("whole", "parts")}
    for folder in folders.values():
        folder.mkdir()
    whole = run_ranks(2, _train, str(folders["whole"]), 1, 12)
    first = run_ranks(2, _train, str(folders["parts"]), 1, 6)
    second = run_ranks(2, _train, str(folders["parts"]), 7, 12)
    for one, other, begun in zip(whole, second, first, strict=True):
        assert torch.equal(one["weights"], other["weights"])
        assert begun["run"] == other["run"] == second[0]["run"]
        assert begun["codecs"] == ["none"] * 3 + ["int8"] * 3
        assert other["codecs"] == ["int8"] * 6


def _adopt(rank: int, world_size: int, folder: str) -> tuple[Any, ...]:
    """Load a state of int8 into a session that was attached without compression."""
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    results: list[tuple[Result, bool]] = []
    session._steering._on_result = lambda result, is_reporter: results.append((result, is_reporter))
    for step in range(1, 4):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.load_state_dict(gradwire.load_state(f"{folder}/saved") or {})
    for step in range(4, 8):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    told = [(type(result).__name__, result.plan.codec, result.step, result.is_rollback) for result, _ in results]
    codec, reporters = session.codec, [is_reporter for _, is_reporter in results]
    session.close()
    return flat(ddp), codec, told, reporters


def _save(rank: int, world_size: int, folder: str) -> None:
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan=PLAN)
    for step in range(1, 6):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    gradwire.save_state(session.state_dict(), f"{folder}/saved")
    session.close()


def test_state_loaded_later_switches_all_ranks_and_is_told(tmp_path):
    run_ranks(2, _save, str(tmp_path))
    (first, codec, told, reporters), (second, *_, others) = run_ranks(2, _adopt, str(tmp_path))
    assert torch.equal(first, second)
    assert codec == "int8"
    assert told == [("Switched", "int8", 4, False)]
    assert (reporters, others) == ([True], [False])


def _grow(rank: int, world_size: int, folder: str) -> list[tuple[str, str]]:
    ddp, optimizer = make_model()
    state = gradwire.load_state(f"{folder}/saved")
    events: list[Event] = []
    session = attach(ddp, optimizer, folder, state=state)
    session._steering._on_event = events.append
    session.load_state_dict(state or {})
    session.step(loss=train_step(ddp, optimizer, batch(rank, 6)))
    session.close()
    return [(event.kind, event.message) for event in events]


def test_other_number_of_ranks_is_an_event(tmp_path):
    run_ranks(2, _save, str(tmp_path))
    for events in run_ranks(3, _grow, str(tmp_path)):
        assert events == [("redistributed", "error feedback of 2 ranks was dealt out to 3")]


def _refuse(rank: int, world_size: int, folder: str, kind: str) -> str:
    ddp, optimizer = make_model()
    state = gradwire.load_state(f"{folder}/saved")
    assert state is not None
    if kind == "missing":
        state = None if rank == 1 else state
    else:
        state["residuals"]["0.weight"][0, 0] += 1
    try:
        attach(ddp, optimizer, folder, state=state)
    except gradwire.AttachError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "text"), [("missing", "rank 1 got no state while others did"), ("bad", "damaged")]
)
def test_attach_refuses_states_that_cannot_be_gone_on_from(kind, text, tmp_path):
    run_ranks(2, _save, str(tmp_path))
    for said in run_ranks(2, _refuse, str(tmp_path), kind):
        assert text in said


def _begin(rank: int, world_size: int, folder: str) -> tuple[bool, str]:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("gradwire_compression").addHandler(handler)
    return gradwire.load_state(folder) is None, " ".join(messages)


def test_c37_missing_state_is_a_warning(tmp_path):
    for is_none, text in run_ranks(2, _begin, str(tmp_path)):
        assert is_none
        assert "the residual starts at zero" in text


def _train_in_checkpoint(rank: int, world_size: int, folder: str, first: int, last: int) -> dict[str, Any]:
    """As `_train`, with the state beside the weights in one checkpoint of torch."""
    ddp, optimizer = make_model()
    model = ddp.module.state_dict()
    state = None
    if first > 1:
        dcp.load({"model": model}, checkpoint_id=folder)
        ddp.module.load_state_dict(model)
        state = gradwire.load_state(folder)
    session = attach(ddp, optimizer, f"{folder}.spool", plan=PLAN if state is None else None, state=state)
    for step in range(first, last + 1):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    entry = gradwire.checkpoint_entry(session.state_dict())
    dcp.save({"model": ddp.module.state_dict(), "extra": {"gradwire": entry}}, checkpoint_id=folder)
    owed = session._steering.exchange.owed()
    session.close()
    return {"weights": flat(ddp), "owed": owed}


def test_state_goes_through_checkpoints_of_torch(tmp_path):
    whole = run_ranks(2, _train_in_checkpoint, str(tmp_path / "whole"), 1, 12)
    run_ranks(2, _train_in_checkpoint, str(tmp_path / "parts"), 1, 6)
    resumed = run_ranks(2, _train_in_checkpoint, str(tmp_path / "parts"), 7, 12)
    for one, other in zip(whole, resumed, strict=True):
        assert torch.equal(one["weights"], other["weights"])
    # What one rank owes is not taken for what the other owes.
    assert not torch.equal(*(result["owed"]["0.weight"] for result in resumed))


def _read_checkpoint(rank: int, world_size: int, folder: str) -> dict[str, Any] | str:
    try:
        state = gradwire.load_state(FileSystemReader(folder))
    except StateError as error:
        return str(error)
    assert state is not None
    return state


def test_state_in_a_checkpoint_is_dealt_out_and_refused_as_in_a_file(tmp_path):
    folder = tmp_path / "parts"
    run_ranks(2, _train_in_checkpoint, str(folder), 1, 6)
    for state in run_ranks(3, _read_checkpoint, str(folder)):
        assert state["note"] == "error feedback of 2 ranks was dealt out to 3"
    for path in folder.glob("*.distcp"):
        content = bytearray(path.read_bytes())
        for place in range(0, len(content), 997):
            content[place] ^= 0x10
        path.write_bytes(content)
    for rank, text in enumerate(run_ranks(2, _read_checkpoint, str(folder))):
        assert re.search(rf"gradwire-model-rank{rank}of2 (is|cannot)", text)
    assert "the residual starts at zero" not in text


def test_plan_of_a_state_is_a_plan_of_ours():
    assert Plan.from_dict(PLAN).to_dict()["warmup_steps"] == 3
    assert issubclass(StateError, ValueError)
