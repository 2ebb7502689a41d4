from typing import Any

import pytest
from gradwire_server.database.tables import step_windows
from gradwire_server.series.rollup import KEY, LEVEL_1_STEPS, SUMS
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, select
from stored_run import StoredRun, steps


def rows(connection: Connection, level: int) -> list[dict[str, Any]]:
    statement = select(step_windows).where(step_windows.c.level == level).order_by(step_windows.c.id)
    return [dict(row) for row in connection.execute(statement).mappings()]


def test_rollup_sums_windows_of_an_aligned_range(connection: Connection) -> None:
    run = StoredRun(connection)
    # Three windows begin in the first 64 steps, the fourth after them.
    for first in (1, 31, 61, 91):
        run.send(steps(first, 30))
    levels = [rows(connection, level) for level in (0, 1, 2)]
    assert [len(level) for level in levels] == [4, 2, 1]
    assert [(row["first_step"], row["last_step"], row["num_windows"]) for row in levels[1]] == [
        (0, 90, 3),
        (64, 120, 1),
    ]
    whole = levels[2][0]
    assert (whole["first_step"], whole["last_step"], whole["num_windows"]) == (1, 120, 4)
    assert whole["num_rank_steps"] == 240
    assert whole["step_seconds"] == pytest.approx(24.0)
    assert whole["received_at"] == run.now


def test_rollup_keeps_minimum_and_maximum(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0, 10, step_seconds_min=0.09, step_seconds_max=0.2, started_at=50.0))
    run.send(steps(10, 10, step_seconds_min=0.05, step_seconds_max=0.1, started_at=40.0))
    run.send(steps(20, 10, step_seconds_min=0.07, step_seconds_max=0.9, started_at=60.0))
    for level in (1, 2):
        (row,) = rows(connection, level)
        assert (row["step_seconds_min"], row["step_seconds_max"], row["started_at"]) == (0.05, 0.9, 40.0)


@pytest.mark.parametrize("change", [{"epoch": 1}, {"codec": "int8"}, {"is_settling": True}])
def test_rollup_never_merges_across(connection: Connection, change: dict[str, Any]) -> None:
    run = StoredRun(connection)
    run.send(steps(0, 5), steps(5, 5, **change), steps(10, 5))
    for level in (1, 2):
        assert sorted(row["num_windows"] for row in rows(connection, level)) == [1, 2]


def test_rollup_never_merges_nodes_or_attempts(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0, 5))
    run.send(steps(0, 5), node=1)
    run.restart()
    run.send(steps(0, 5))
    assert len(rows(connection, 1)) == len(rows(connection, 2)) == 3


def test_rollup_keeps_unknown_transfer_apart(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0, 10, transfer=0.040))
    run.send(steps(10, 10, transfer=None, unknown_reason="the pulse was late"))
    run.send(steps(20, 10, transfer=0.020), steps(30, 10, transfer=None))
    known, unknown = sorted(rows(connection, 2), key=lambda row: row["exposed_transfer_seconds"] is None)
    assert known["exposed_transfer_seconds"] == pytest.approx(20 * 0.060)
    assert known["num_windows"] == unknown["num_windows"] == 2
    assert unknown["exposed_transfer_seconds"] is None
    assert unknown["unknown_reason"] == "the pulse was late"


Spans = st.lists(
    st.tuples(
        st.integers(1, 150), st.integers(0, 2), st.sampled_from(("none", "int8")), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=30,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(spans=Spans, batch=st.integers(1, 7))
def test_rollup_levels_hold_the_same_sums_however_windows_are_batched(
    connection: Connection, spans: list[tuple[int, int, str, bool, bool]], batch: int
) -> None:
    run = StoredRun(connection)
    windows, first = [], 0
    for num_steps, epoch, codec, is_settling, is_known in spans:
        transfer = 0.03 if is_known else None
        windows.append(
            steps(first, num_steps, epoch=epoch, codec=codec, is_settling=is_settling, transfer=transfer)
        )
        first += num_steps
    for start in range(0, len(windows), batch):
        run.send(*windows[start : start + batch])
    level_0 = [row for row in rows(connection, 0) if row["run"] == run.id]
    for level in (1, 2):
        merged = [row for row in rows(connection, level) if row["run"] == run.id]
        for name in SUMS:
            values = [row[name] for row in level_0 if row[name] is not None]
            assert sum(row[name] for row in merged if row[name] is not None) == pytest.approx(sum(values))
        keys = {
            (*(row[name] for name in KEY), row["exposed_transfer_seconds"] is None)
            + ((row["first_step"] // LEVEL_1_STEPS,) if level == 1 else ())
            for row in level_0
        }
        assert len(merged) == len(keys)
