"""What training code may do while a session is attached."""

import copy
import io
from pathlib import Path
from typing import Any

import gradwire
import pytest
import torch
from distributed.hooked import CODECS
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, train_step
from gradwire_protocol.records import Event
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed


def _saved_and_copied(rank: int, world_size: int, folder: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 64})
    for step in range(3):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    copied = copy.deepcopy(ddp.module)
    copy.deepcopy(ddp)
    buffer = io.BytesIO()
    torch.save(ddp, buffer)
    torch.save(optimizer.state_dict(), io.BytesIO())
    for step in range(3, 6):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    with torch.no_grad():
        loaded.module(batch(rank, 0))
    session.close()
    return flat(ddp), flat(loaded), torch.cat([p.detach().reshape(-1) for p in copied.parameters()])


def test_saving_and_copying_the_model_works_while_attached(tmp_path):
    for trained, loaded, copied in run_ranks(2, _saved_and_copied, str(tmp_path)):
        assert torch.equal(loaded, copied)
        assert not torch.equal(trained, loaded)


def _poisoned(rank: int, world_size: int, folder: str, codec: str) -> tuple[list[Any], bool, torch.Tensor]:
    torch.manual_seed(0)
    ddp = DistributedDataParallel(nn.Linear(8, 8, bias=False))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    # A block and its padding are more than these 64 elements, so that nothing is saved.
    plan = {"codec": codec, "min_elements": 1, "every_bucket": True}
    session = attach(ddp, optimizer, folder, plan=plan)
    events: list[Event] = []
    session._steering._on_event = events.append
    seen_at_5 = False
    for step in range(1, 11):
        optimizer.zero_grad()
        loss = ddp(torch.ones(4, 8)).sum() * (float("nan") if rank == 1 and step == 5 else 1.0)
        loss.backward()
        is_finite = all(bool(p.grad.isfinite().all()) for p in ddp.parameters() if p.grad is not None)
        seen_at_5 |= step == 5 and not is_finite
        if is_finite:
            optimizer.step()
        session.step(samples=4)
    session.close()
    return [(e.kind, e.step, e.rank) for e in events if e.kind == "nonfinite"], seen_at_5, flat(ddp)


@pytest.mark.parametrize("codec", CODECS)
def test_c01_one_bad_value_is_one_event_and_spoils_one_step(codec, tmp_path):
    (events0, seen0, flat0), (events1, seen1, flat1) = run_ranks(2, _poisoned, str(tmp_path), codec)
    assert events0 == []
    assert events1 == [("nonfinite", 5, 1)]
    assert seen0
    assert seen1
    assert flat0.isfinite().all()
    assert torch.equal(flat0, flat1)


def _frozen(rank: int, world_size: int, folder: str) -> str:
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    for parameter in ddp.parameters():
        parameter.requires_grad_(False)
    try:
        attach(ddp, None, folder)
    except gradwire.AttachError as error:
        return str(error)
    return "attached"


def test_c09_a_model_with_nothing_to_train_is_refused_in_plain_words(tmp_path):
    for text in run_ranks(2, _frozen, str(tmp_path)):
        assert "no parameter that requires a gradient" in text


def _unwrapped(rank: int, world_size: int, folder: str) -> list[str]:
    said = []
    for model, wanted in ((nn.Linear(2, 2), "int8"), (DistributedDataParallel(nn.Linear(2, 2)), "onebit")):
        try:
            attach(model, torch.optim.AdamW(model.parameters()), folder, plan=wanted)  # type: ignore[arg-type]
        except gradwire.AttachError as error:
            said.append(str(error))
    return said


def test_attach_says_what_is_wrong(tmp_path):
    for said in run_ranks(2, _unwrapped, str(tmp_path)):
        assert "DistributedDataParallel" in said[0]
        assert "AdamW" in said[1]
        assert "int8" in said[1]


def _bit_equal(rank: int, world_size: int, folder: str, with_agent: bool, kind: str) -> torch.Tensor:
    arguments: dict[str, Any] = {"static_graph": True} if kind == "static_graph" else {}
    if kind == "unused":
        arguments = {"find_unused_parameters": True}
    ddp, optimizer = make_model(gradient_as_bucket_view=kind == "view", **arguments)
    session = attach(ddp, optimizer, folder) if with_agent else None
    for step in range(12):
        if kind == "no_sync":
            with ddp.no_sync():
                ddp(batch(rank, 100 + step)).sum().backward()
        loss = train_step(ddp, optimizer, batch(rank, step))
        if session is not None:
            session.step(loss=loss, samples=16)
    if session is not None:
        session.close()
    return flat(ddp)


@pytest.mark.parametrize("kind", ["default", "view", "static_graph", "unused", "no_sync"])
def test_measuring_only_leaves_the_weights_bit_equal(kind, tmp_path):
    with_agent = run_ranks(3, _bit_equal, str(tmp_path), True, kind)
    without = run_ranks(3, _bit_equal, str(tmp_path), False, kind)
    for ours, plain in zip(with_agent, without, strict=True):
        assert torch.equal(ours, plain)


def test_nothing_is_left_in_the_folder_but_the_spool(tmp_path):
    run_ranks(2, _bit_equal, str(tmp_path), True, "default")
    assert [path.name for path in Path(tmp_path).iterdir()] == ["spool"]
