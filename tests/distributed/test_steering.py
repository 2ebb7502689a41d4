"""All ranks switch at one step, whatever their pace: real gloo ranks, no server."""

import random
import threading
import time
from typing import Any

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import (
    attach,
    batch,
    changes,
    flat,
    make_model,
    pulse_with_every_exchange,
    random_delay,
    train_step,
)
from gradwire_protocol.messages import Directive
from gradwire_protocol.plans import PlanSpec

pytestmark = pytest.mark.distributed


def directive(revision: int, codec: str, *, kind: str = "set", epoch: int = 10**6, **plan: Any) -> Directive:
    return Directive(
        revision=revision,
        model="model",
        kind=kind,  # type: ignore[arg-type]
        plan=PlanSpec(codec=codec, min_elements=64, **plan),
        epoch=epoch,
        author="test",
    )


def _toggle_at_random_times(steering: Any, num_toggles: int) -> None:
    chance = random.Random(7)
    for revision in range(1, num_toggles + 1):
        time.sleep(chance.random() * 0.02)
        codec = chance.choice(["none", "bf16", "int8", "onebit"])
        kind = "rollback" if codec == "none" and chance.random() < 0.5 else "set"
        steering.offer(directive(revision, codec, kind=kind))
        while steering.epoch < revision:
            time.sleep(0.001)


def _toggled_run(rank: int, world_size: int, folder: str, num_toggles: int) -> tuple[list[Any], torch.Tensor, int]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    steering, delay = session._steering, random_delay(rank, 0.02)
    if rank == 0:
        threading.Thread(target=_toggle_at_random_times, args=(steering, num_toggles), daemon=True).start()
    history: list[tuple[int, str]] = []
    while steering.epoch < num_toggles:
        delay()
        loss = train_step(ddp, optimizer, batch(rank, session.current_step))
        history.append((session.current_step, session.codec))
        session.step(loss=loss, samples=16)
    session.close()
    return changes(history), flat(ddp), steering.epoch


@pytest.mark.parametrize("world_size", [2, 3])
def test_200_toggles_at_random_times_reach_all_ranks_at_the_same_step(world_size, tmp_path):
    results = run_ranks(world_size, _toggled_run, str(tmp_path), 200, timeout=150)
    first_changes, first_parameters, _ = results[0]
    assert len(first_changes) > 100
    for other_changes, parameters, epoch in results:
        assert epoch == 200
        assert other_changes == first_changes
        assert torch.equal(parameters, first_parameters)


def _refusing_run(rank: int, world_size: int, folder: str) -> tuple[str, int, list[Any]]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    outcomes: list[Any] = []
    session._steering._on_result = lambda result, is_reporter: outcomes.append((type(result).__name__, is_reporter))
    if rank == 1:

        def fail(plan: Any) -> None:
            raise MemoryError("12 GB wanted, 1 GB free")

        session._steering.exchange.prepare = fail
    for step in range(8):
        if rank == 0 and step == 2:
            session._steering.offer(directive(1, "int8"))
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return session.codec, session._steering.epoch, outcomes


def test_one_refusal_keeps_every_rank_where_it_was(tmp_path):
    results = run_ranks(2, _refusing_run, str(tmp_path))
    assert [(codec, epoch) for codec, epoch, _ in results] == [("none", 0)] * 2
    assert [outcomes for _, _, outcomes in results] == [[("Refused", True)], [("Refused", False)]]


def _unknown_codec_run(rank: int, world_size: int, folder: str) -> list[str]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    reasons: list[str] = []
    session._steering._on_result = lambda result, _: reasons.append(result.refusals[rank].reason)
    for step in range(8):
        if rank == 0 and step == 2:
            session._steering.offer(directive(1, "martian"))
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return reasons


def test_a_codec_that_only_the_server_knows_is_refused_by_every_rank(tmp_path):
    for reasons in run_ranks(2, _unknown_codec_run, str(tmp_path)):
        assert len(reasons) == 1
        assert "martian" in reasons[0]


def _failing_switch_run(rank: int, world_size: int, folder: str) -> str:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    if rank == 1:

        def fail(prepared: Any, *, residuals: str) -> None:
            raise MemoryError("out of memory")

        session._steering.exchange.switch = fail
    try:
        for step in range(8):
            if rank == 0 and step == 2:
                session._steering.offer(directive(1, "int8"))
            session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_a_rank_that_fails_to_switch_stops_training_by_name_instead_of_mixing(tmp_path):
    healthy, failed = run_ranks(2, _failing_switch_run, str(tmp_path))
    assert "rank 1 could not switch" in failed
    assert healthy != "no error"


def _local_rollback_run(rank: int, world_size: int, folder: str) -> tuple[list[Any], list[Any]]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 64})
    results: list[Any] = []
    session._steering._on_result = lambda result, is_reporter: results.append((result, is_reporter))
    history = []
    for step in range(30):
        if rank == 1 and step == 10:
            session.rollback("the loss looks odd")
        if rank == 0 and step == 20:
            # Made before the rollback, delivered after it: it must not undo it.
            session._steering.offer(directive(1, "int8", epoch=0))
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
        history.append((session.current_step, session.codec))
    session.close()
    return changes(history), [(type(r).__name__, getattr(r, "cause", ""), r.step, who) for r, who in results]


def test_any_rank_can_roll_back_and_older_directives_do_not_undo_it(tmp_path):
    (changes0, results0), (changes1, results1) = run_ranks(2, _local_rollback_run, str(tmp_path))
    assert changes0 == changes1
    assert [codec for _, codec in changes0] == ["int8", "none"]
    assert [name for name, *_ in results0] == ["Switched", "Refused"]
    assert results0[0][1:] == ("local", results1[0][2], False)
    assert results1[0][3] is True, "the rank that asked reports it"


def _guarded_run(rank: int, world_size: int, folder: str) -> tuple[list[Any], list[Any]]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 64})
    results: list[Any] = []
    session._steering._on_result = lambda result, is_reporter: results.append((result, is_reporter))
    history = []
    for step in range(20):
        loss = train_step(ddp, optimizer, batch(rank, step))
        is_bad = rank == 1 and 6 <= step < 9
        session.step(loss=float("nan") if is_bad else loss)
        history.append((session.current_step, session.codec))
    session.close()
    return changes(history), [(r.cause, r.reason) for r, is_reporter in results if is_reporter]


def test_the_guard_of_one_rank_rolls_everybody_back(tmp_path):
    (changes0, _), (changes1, reported) = run_ranks(2, _guarded_run, str(tmp_path))
    assert changes0 == changes1
    assert [codec for _, codec in changes0] == ["int8", "none"]
    assert reported == [("guard", "the loss was not finite for 3 steps in a row, up to step 9")]


def _reporting_run(rank: int, world_size: int, folder: str, mode: str) -> tuple[int, list[Any]]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 64}, guard=mode)
    events: list[Any] = []
    session._steering._on_event = lambda event: events.append((event.kind, event.data.get("reason")))
    for step in range(20):
        loss = train_step(ddp, optimizer, batch(rank, step))
        session.step(loss=float("nan") if 6 <= step < 9 else loss)
    epoch = session._steering.epoch
    session.close()
    return epoch, events


def test_a_guard_that_only_reports_says_so_once_for_all_ranks_and_does_nothing(tmp_path):
    results = run_ranks(2, _reporting_run, str(tmp_path), "report")
    assert [epoch for epoch, _ in results] == [0, 0]
    reason = "the loss was not finite for 3 steps in a row, up to step 9"
    assert [event for _, events in results for event in events] == [("would_roll_back", reason)]


def test_a_guard_that_is_off_is_silent(tmp_path):
    assert run_ranks(2, _reporting_run, str(tmp_path), "off") == [(0, [])] * 2


def _mismatched_run(rank: int, world_size: int, folder: str) -> str:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    if rank == 1:
        session._steering.epoch = 5
    try:
        for step in range(5):
            session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def test_ranks_that_disagree_on_the_plan_stop_by_name(tmp_path):
    for text in run_ranks(2, _mismatched_run, str(tmp_path)):
        assert "PlanMismatchError" in text
        assert "disagree" in text


def _closing_run(rank: int, world_size: int, folder: str) -> tuple[list[tuple[int, str]], torch.Tensor]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 64})
    history = []
    for step in range(20):
        # The ranks close at different steps and training goes on.
        if step == 5 + 3 * rank:
            session.close()
        train_step(ddp, optimizer, batch(rank, step))
        session.step()
        history.append((step, session._steering.exchange.plan.codec))
    return changes(history), flat(ddp)


def test_after_close_compression_ends_on_all_ranks_together(tmp_path):
    (changes0, parameters0), (changes1, parameters1) = run_ranks(2, _closing_run, str(tmp_path))
    assert changes0 == changes1
    assert [codec for _, codec in changes0] == ["int8", "none"]
    assert torch.equal(parameters0, parameters1)
