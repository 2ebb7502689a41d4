"""What check windows tell of a run: how much faster it is, though its network has changed since the switch."""

import sqlite3
from itertools import count

import pytest
from gradwire_server.figures.drawing import switches
from gradwire_server.series.checks import check_steps, checks
from gradwire_server.series.windows import stretches
from gradwire_server.verdict.paying import MIN_CHECKS
from sqlalchemy import Connection
from stored_run import StoredRun, steps, view

HOUR = 3600.0


def begin(run: StoredRun) -> int:
    """Store 100 uncompressed steps of 100 ms and a switch to int8; return the step that comes next."""
    for first in range(0, 100, 10):
        run.send(steps(first, step=0.100))
    run.switch(100, 1, "int8")
    run.send(steps(100, 2, step=0.300, codec="int8", epoch=1, is_settling=True))
    return 102


def check(run: StoredRun, at: int, *, exact: float, compressed: float, node: int = 0, epoch: int = 1) -> int:
    """Store 50 compressed steps, a window of 20, and the settling steps after it; return the step that follows."""
    for first in range(at, at + 50, 10):
        run.send(steps(first, step=compressed, transfer=0.01, codec="int8", epoch=epoch), node=node)
    at += 50
    run.send(steps(at, 2, step=2 * exact, epoch=epoch, is_check=True, is_settling=True), node=node)
    # Windows of a second end in the midst of it.
    run.send(steps(at + 2, 7, step=exact, epoch=epoch, is_check=True), node=node)
    run.send(steps(at + 9, 11, step=exact, epoch=epoch, is_check=True), node=node)
    settling = steps(at + 20, 2, step=2 * compressed, transfer=0.01, codec="int8", epoch=epoch, is_settling=True)
    run.send(settling, node=node)
    return at + 22


def checked(run: StoredRun, num_windows: int, *, gain: float = 2.0) -> int:
    """Store windows of a run whose steps become slower and slower, compressed or not."""
    at = begin(run)
    for index in range(num_windows):
        compressed = 0.100 + 0.010 * index
        at = check(run, at, exact=gain * compressed, compressed=compressed)
    run.send(steps(at, 40, step=0.100 + 0.010 * num_windows, transfer=0.01, codec="int8", epoch=1))
    return at + 40


def test_speed_is_measured_against_the_neighbours_of_each_window(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=10_000)
    checked(run, 6)
    verdict = view(connection, run).summary.verdict
    # Against the 100 ms from before the switch, int8 would seem to be slower.
    assert (verdict.kind, verdict.num_checks) == ("paying_off", 7)
    assert verdict.speedup.low is not None
    assert verdict.speedup.high is not None
    assert verdict.speedup.low < verdict.speedup.value < verdict.speedup.high
    assert verdict.speedup.value == pytest.approx(1.9, abs=0.1)


def test_last_exact_steps_before_the_switch_are_the_first_window(connection: Connection) -> None:
    run = StoredRun(connection)
    checked(run, 2)
    lossy = next(s for s in stretches(connection, run.id, "model") if s.codec == "int8" and not s.is_settling)
    found = checks(connection, run.id, "model", lossy, 100)
    assert [(one.exact.first_step, one.exact.last_step) for one in found] == [(80, 99), (154, 171), (226, 243)]
    assert found[0].before is None
    assert found[0].after is not None
    assert (found[0].after.first_step, found[0].after.last_step) == (102, 121)
    assert found[1].before is not None
    assert (found[1].before.first_step, found[1].before.last_step) == (132, 151)
    assert found[1].compressed_seconds == pytest.approx(0.105)


def test_too_few_windows_leave_the_comparison_with_the_steps_before_the_switch(connection: Connection) -> None:
    run = StoredRun(connection)
    checked(run, MIN_CHECKS - 2)
    verdict = view(connection, run).summary.verdict
    assert (verdict.num_checks, verdict.num_uncompressed_steps) == (0, 100)
    assert verdict.speedup.value is not None
    assert verdict.speedup.value < 1


def test_cost_of_the_windows_is_subtracted_from_what_was_saved(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=1000)
    last = checked(run, 6)
    saving = view(connection, run).saving
    assert saving.num_checks == 7
    compressed = 40 * 0.160 + sum(50 * (0.100 + 0.010 * index) for index in range(6))
    num_compressed = 40 + 6 * 50
    settling = 2 * 0.300 + sum(2 * 2 * (0.100 + 0.010 * index) for index in range(6))
    windows = sum((18 * 2 + 2 * 4) * (0.100 + 0.010 * index) for index in range(6))
    speed = view(connection, run).summary.verdict.speedup.value
    assert speed is not None
    without = speed * compressed / num_compressed * (last - 100)
    expected = 2 * (without - compressed - settling - windows) / HOUR
    assert saving.saved_hours.value == pytest.approx(expected, rel=1e-6)
    assert saving.saved_hours.low is not None
    assert saving.saved_hours.low < expected
    left = 2 * (1000 - last + 1) * compressed / num_compressed * (speed - 1) / HOUR
    assert saving.will_save_hours.value == pytest.approx(left, rel=1e-6)


def test_what_was_saved_stays_when_the_codec_changes(connection: Connection) -> None:
    run = StoredRun(connection)
    run.switch(0, 1, "int8")
    at = 0
    for _ in range(9):
        at = check(run, at, exact=0.15, compressed=0.1)
    before = view(connection, run).saving
    assert before.num_checks == 9
    assert before.saved_hours.value is not None
    run.switch(at, 2, "bf16")
    run.send(steps(at, 2, step=0.3, codec="bf16", epoch=2, is_settling=True))
    changed = view(connection, run).saving
    assert (changed.saved_hours, changed.num_checks) == (before.saved_hours, before.num_checks)
    for first in range(at + 2, at + 402, 10):
        run.send(steps(first, step=0.1, transfer=0.01, codec="bf16", epoch=2))
    after = view(connection, run).saving
    # The new steps have no windows yet and are compared with the uncompressed steps of all earlier ones.
    assert after.num_checks == 9
    gained = 2 * (402 * 0.15 - 400 * 0.1 - 2 * 0.3) / HOUR
    assert after.saved_hours.value == pytest.approx(before.saved_hours.value + gained, rel=1e-6)


def test_every_codec_is_judged_by_its_own_windows(connection: Connection) -> None:
    run = StoredRun(connection)
    at = 0
    for epoch, exact in ((1, 0.15), (2, 0.3)):
        run.switch(at, epoch, "int8")
        for _ in range(5):
            at = check(run, at, exact=exact, compressed=0.1, epoch=epoch)
    saving = view(connection, run).saving
    assert saving.num_checks == 10
    # Settling steps take twice as long, in windows and after them.
    first = 5 * (72 * 0.15 - 50 * 0.1 - 18 * 0.15 - 2 * 0.3 - 2 * 0.2)
    second = 5 * (72 * 0.3 - 50 * 0.1 - 18 * 0.3 - 2 * 0.6 - 2 * 0.2)
    assert saving.saved_hours.value == pytest.approx(2 * (first + second) / HOUR, rel=1e-6)


def test_run_compressed_from_its_start_is_judged_by_its_windows(connection: Connection) -> None:
    run = StoredRun(connection)
    run.switch(0, 1, "int8")
    at = 0
    for _ in range(9):
        at = check(run, at, exact=0.15, compressed=0.1)
    run.send(steps(at, 40, step=0.1, transfer=0.01, codec="int8", epoch=1))
    shown = view(connection, run)
    assert shown.summary.verdict.kind == "paying_off"
    assert shown.summary.verdict.speedup.value == pytest.approx(1.5)
    assert shown.summary.verdict.share.value == pytest.approx(0.04 / 0.15)
    assert shown.saving.saved_hours.value is not None
    assert shown.saving.saved_hours.value > 0


def test_windows_are_no_changes_and_no_verdict_of_now(connection: Connection) -> None:
    run = StoredRun(connection)
    at = begin(run)
    at = check(run, at, exact=0.2, compressed=0.1)
    shown = view(connection, run)
    assert switches(stretches(connection, run.id, "model")) == [(100, "int8")]
    assert check_steps(connection, run.id, "model", limit=20) == [152]
    assert shown.step_seconds.value == pytest.approx(0.1)
    assert shown.summary.codec == "int8"


def test_windows_of_an_abandoned_branch_are_not_drawn(connection: Connection) -> None:
    run = StoredRun(connection)
    at = begin(run)
    for _ in range(3):
        at = check(run, at, exact=0.2, compressed=0.1)
    run.restart()
    run.send(steps(200, codec="int8"))
    # The first window lies before step 200, where the training was resumed, the others only in what was given up.
    assert check_steps(connection, run.id, "model", limit=20) == [152]


def test_cost_of_reading_windows_does_not_grow_with_the_run(connection: Connection) -> None:
    def operations() -> int:
        lossy = next(s for s in stretches(connection, run.id, "model") if s.codec == "int8" and not s.is_settling)
        num_calls = count()
        # SQLite's own count, in tens of its instructions.
        driver = connection.connection.driver_connection
        assert isinstance(driver, sqlite3.Connection)
        driver.set_progress_handler(lambda: next(num_calls) * 0, 10)
        assert len(checks(connection, run.id, "model", lossy, 100)) == 7
        driver.set_progress_handler(None, 0)
        return next(num_calls)

    run = StoredRun(connection)
    at = begin(run)
    for _ in range(3):
        at = check(run, at, exact=0.2, compressed=0.1)
    apart = at + 20_000
    at = apart
    for _ in range(3):
        at = check(run, at, exact=0.2, compressed=0.1)
    before = operations()
    between = range(apart - 18_000, apart - 2000, 10)
    run.send(*(steps(first, step=0.1, transfer=0.01, codec="int8", epoch=1) for first in between))
    assert operations() < 1.2 * before


def test_nodes_of_one_window_count_together(connection: Connection) -> None:
    run = StoredRun(connection, world_size=4)
    for node in (0, 1):
        at = begin(run) if node == 0 else 102
        for _ in range(5):
            at = check(run, at, exact=0.2 if node == 0 else 0.22, compressed=0.1, node=node)
        run.send(steps(at, 40, step=0.1, transfer=0.01, codec="int8", epoch=1), node=node)
    verdict = view(connection, run).summary.verdict
    assert verdict.num_checks == 6
    assert verdict.speedup.value is not None
    assert 1.9 < verdict.speedup.value < 2.1
