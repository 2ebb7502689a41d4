"""Check windows of a real training: begun and ended by all ranks at one step, and marked."""

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.test_steering import directive
from distributed.training import attach, batch, flat, make_model, pulse_with_every_exchange, train_step
from gradwire.steering.checks import CHECK_STEPS, Budget
from gradwire_protocol.records import StepWindow

pytestmark = pytest.mark.distributed


def _spend_freely(session):
    """Let windows come as soon as there are steps to compare with, however long steps take here."""
    session._steering._checks._budget = Budget(1e9)


INT8 = {"codec": "int8", "min_elements": 64}


def _watched(rank, world_size, folder, num_steps, until=None, is_generous=True, **arguments):
    """Train; (step, is a check, settles, codec) of each step, the parameters, and what was reported."""
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan=INT8, **arguments)
    if is_generous:
        _spend_freely(session)
    steering, windows, history = session._steering, [], []
    session._outlet._reporter.report = lambda record, **_: windows.append(record)
    for step in range(num_steps):
        if until is not None:
            until(session, rank, step, history)
        loss = train_step(ddp, optimizer, batch(rank, step))
        history.append((step, steering.is_check, steering.is_settling, session.codec))
        session.step(loss=loss, samples=16)
    recorder = session._recorder
    recorder.close(5.0)
    return history, flat(ddp), [record for record in windows if isinstance(record, StepWindow)]


def _generous_run(rank, world_size, folder):
    return _watched(rank, world_size, folder, 200)


def _checked(history):
    """Return (first step, number of steps) of each window."""
    found = []
    for step, is_check, _, _ in history:
        if is_check and (not found or sum(found[-1]) < step):
            found.append((step, 1))
        elif is_check:
            found[-1] = found[-1][0], found[-1][1] + 1
    return found


def test_all_ranks_begin_and_end_each_window_at_one_step_and_stay_equal(tmp_path):
    results = run_ranks(3, _generous_run, str(tmp_path))
    history, parameters, windows = results[0]
    begun = _checked(history)
    assert len(begun) >= 2
    assert all(num_steps == CHECK_STEPS for _, num_steps in begun[:-1])
    for other_history, other_parameters, _ in results:
        assert other_history == history
        assert torch.equal(other_parameters, parameters)
    first = begun[0][0]
    assert [codec for step, _, _, codec in history if first <= step < first + CHECK_STEPS] == ["none"] * CHECK_STEPS
    settling = [step for step, _, settles, _ in history if settles and step > 5]
    assert settling[:4] == [first, first + 1, first + CHECK_STEPS, first + CHECK_STEPS + 1]
    _assert_marked(windows, history)


def _assert_marked(windows, history):
    """The records tell of each step what it was; their steps count from 1."""
    told = {}
    for window in windows:
        for step in range(window.first_step, window.last_step + 1):
            told[step - 1] = (window.is_check, window.is_settling, window.codec)
        assert window.epoch == 0
    assert told == {step: told_of for step, *rest in history for told_of in [tuple(rest)]}


def _default_run(rank, world_size, folder):
    return _watched(rank, world_size, folder, 120, is_generous=False)


def _turned_off_run(rank, world_size, folder):
    return _watched(rank, world_size, folder, 200, is_generous=False, check_share=0.0)


@pytest.mark.parametrize("run", [_default_run, _turned_off_run])
def test_no_window_before_the_budget_allows_one_or_where_they_are_off(run, tmp_path):
    for history, _, _ in run_ranks(2, run, str(tmp_path)):
        assert _checked(history) == []


def _changed_run(rank, world_size, folder, kind):
    results = []

    def change(session, rank, step, history):
        if history and history[-1][1] and not results:
            results.append(step)
            if kind == "rollback":
                session.rollback("in the midst of a window")
            elif rank == 0:
                session._steering.offer(directive(1, "int4"))

    history, parameters, _ = _watched(rank, world_size, folder, 200, until=change)
    return history, parameters, results[0]


@pytest.mark.parametrize(("kind", "codec"), [("rollback", "none"), ("change", "int4")])
def test_a_change_in_the_midst_of_a_window_ends_it_on_all_ranks(kind, codec, tmp_path):
    results = run_ranks(2, _changed_run, str(tmp_path), kind)
    history, parameters, asked_at = results[0]
    assert all(other == history and torch.equal(vector, parameters) for other, vector, _ in results)
    first, num_steps = _checked(history)[0]
    assert num_steps < CHECK_STEPS
    assert first < asked_at <= first + num_steps
    assert history[first + num_steps][1:] == (False, True, codec)


def _guarded_run(rank, world_size, folder):
    """The loss is not finite in the windows, and nowhere else."""
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan=INT8)
    _spend_freely(session)
    steering, num_bad = session._steering, 0
    for step in range(120):
        loss = train_step(ddp, optimizer, batch(rank, step))
        num_bad += steering.is_check
        session.step(loss=float("nan") if steering.is_check else loss)
    epoch = steering.epoch
    session.close()
    return num_bad, epoch


def test_the_guard_ignores_the_steps_of_windows(tmp_path):
    for num_bad, epoch in run_ranks(2, _guarded_run, str(tmp_path)):
        assert num_bad >= CHECK_STEPS
        assert epoch == 0
