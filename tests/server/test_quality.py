import random
from collections.abc import Sequence

import pytest
from gradwire_server.database.tables import runs
from gradwire_server.quality.comparison import Check, compare, pool
from gradwire_server.quality.reading import quality
from gradwire_server.runs.sources import load_source
from gradwire_server.runs.views import QualityView
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, update
from stored_run import StoredRun, metric, steps


def checks(drifts: Sequence[float | None], baseline: float = 0.867) -> list[Check]:
    """Return checks whose values are `drift` relative to the baseline; None is not finite."""
    return [
        Check(1000 * index, None if drift is None else baseline * (1 + drift), baseline)
        for index, drift in enumerate(drifts)
    ]


def test_within_limit_when_the_whole_interval_is_below_it() -> None:
    view = compare(checks([-0.001, -0.0005, -0.0015, -0.001]), better="higher")
    assert (view.state, view.reason, view.num_checks, view.last_step) == ("within_limit", "", 4, 3000)
    # An accuracy that is lower is worse, and worse is positive.
    assert view.drift.value == pytest.approx(0.001)
    assert view.floor == pytest.approx(0.867 * 0.995)


def test_breach_when_the_whole_interval_is_beyond_the_limit() -> None:
    view = compare(checks([0.008, 0.009, 0.010, 0.0085], baseline=2.5), better="lower")
    assert view.state == "breach"
    assert view.drift.low is not None
    assert view.drift.low > 0.005
    assert view.floor == pytest.approx(2.5 * 1.005)


def test_cannot_tell_across_the_limit() -> None:
    assert compare(checks([0.001, 0.008, 0.004, 0.007]), better="lower").state == "cannot_tell"


def test_better_than_the_baseline_is_within_limit() -> None:
    view = compare(checks([-0.02, -0.03, -0.025]), better="lower")
    assert view.state == "within_limit"
    assert view.drift.value == pytest.approx(-0.025)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_checks_are_no_evidence(count: int) -> None:
    view = compare(checks([0.0] * count), better="lower")
    assert (view.state, view.reason) == ("no_evidence", "too_few_checks")
    assert view.drift.value is None


def test_no_common_steps_are_no_evidence() -> None:
    assert compare([], better="lower").reason == "no_common_steps"
    assert compare([Check(1, 1.0, None), Check(2, 1.0, 0.0)], better="lower").reason == "no_common_steps"


def test_non_finite_value_is_a_breach_even_in_a_single_check() -> None:
    view = compare(checks([0.0, 0.0, None, 0.0]), better="lower")
    assert (view.state, view.reason, view.drift.value) == ("breach", "nonfinite", None)
    assert compare(checks([None]), better="higher").state == "breach"


def test_non_finite_baseline_is_left_out() -> None:
    view = compare([*checks([0.0] * 5), Check(9000, None, None)], better="lower")
    assert (view.state, view.num_checks) == ("within_limit", 5)


@given(st.lists(st.one_of(st.none(), st.floats(-0.5, 0.5)), max_size=12), st.sampled_from(("higher", "lower")))
def test_no_data_is_never_healthy(drifts: list[float | None], better: str) -> None:
    view = compare(checks(drifts), better=better)  # type: ignore[arg-type]
    if view.state == "within_limit":
        assert len(drifts) >= 3
        assert None not in drifts
        assert view.drift.high is not None
        assert view.drift.high < view.limit
    if view.state == "breach":
        assert None in drifts or (view.drift.low is not None and view.drift.low > view.limit)


@given(st.floats(-0.1, 0.1), st.floats(-10, 10).filter(lambda value: abs(value) > 0.1))
def test_direction_turns_the_sign(drift: float, baseline: float) -> None:
    given_checks = [Check(step, baseline + drift * abs(baseline), baseline) for step in range(5)]
    lower, higher = compare(given_checks, better="lower"), compare(given_checks, better="higher")
    assert lower.drift.value == pytest.approx(drift, abs=1e-9)
    assert higher.drift.value == pytest.approx(-drift, abs=1e-9)


def test_pool_takes_means_over_the_same_steps() -> None:
    pooled = pool([Check(step, float(step), 2.0) for step in range(6)], num_checks=3)
    assert pooled == [Check(1, 0.5, 2.0), Check(3, 2.5, 2.0), Check(5, 4.5, 2.0)]


def test_pool_keeps_a_non_finite_value_visible() -> None:
    pooled = pool([Check(0, 1.0, 1.0), Check(1, None, 1.0), Check(2, 1.0, 1.0), Check(3, None, None)], num_checks=2)
    assert [check.value for check in pooled] == [None, 1.0]


def noise(step: int) -> float:
    """The batch of a step makes its loss, and both runs of a pair see the same batch."""
    return random.Random(step).uniform(-0.3, 0.3)


def loss(step: int, drift: float = 0.0) -> float:
    return (2.0 + 1.0 / (step + 1) + noise(step)) * (1 + drift)


def pair(connection: Connection, drift: float, *, num_steps: int = 1500, **facts: object) -> StoredRun:
    """Store a baseline and a run that chose it, compressed from step 500 on."""
    baseline = StoredRun(connection, run_name="exact", **facts)
    run = StoredRun(connection, **facts)
    for start in range(0, num_steps, 500):
        of_baseline = [loss(step) for step in range(start, start + 500)]
        of_run = [loss(step, drift if start else 0.0) for step in range(start, start + 500)]
        window = steps(start, 500, codec="int8" if start else "none", epoch=1 if start else 0)
        baseline.send(steps(start, 500), metric(start, of_baseline))
        run.send(window, metric(start, of_run))
    choose(connection, run, baseline)
    return run


def choose(connection: Connection, run: StoredRun, baseline: StoredRun) -> None:
    connection.execute(update(runs).where(runs.c.id == run.id).values(baseline_run=baseline.id))


def judge(connection: Connection, run: StoredRun, first_step: int = 0) -> QualityView:
    source = load_source(connection, run.id)
    assert source is not None
    return quality(connection, source, first_step)


@pytest.mark.parametrize(("drift", "state"), [(0.0, "within_limit"), (0.004, "within_limit"), (0.02, "breach")])
def test_training_loss_is_compared_over_ranges_of_steps(connection: Connection, drift: float, state: str) -> None:
    view = judge(connection, pair(connection, drift), first_step=500)
    assert (view.state, view.metric, view.baseline_name) == (state, "loss", "exact")
    assert view.drift.value == pytest.approx(drift, abs=1e-9)
    assert view.num_checks == 10
    assert view.last_step == 1499


def test_steps_before_compression_do_not_dilute_the_drift(connection: Connection) -> None:
    run = pair(connection, 0.02, num_steps=1000)
    assert judge(connection, run, first_step=500).drift.value == pytest.approx(0.02)
    assert judge(connection, run, first_step=0).drift.value == pytest.approx(0.01, abs=0.002)


def test_evaluation_metric_of_both_runs_comes_before_the_loss(connection: Connection) -> None:
    run = pair(connection, 0.02, better={"accuracy": "higher"})
    baseline = StoredRun(connection, run_name="evaluated", better={"accuracy": "higher"})
    run.send(metric(600, [0.80, 0.81, 0.82, 0.83], name="accuracy", every=100, is_evaluation=True))
    baseline.send(metric(600, [0.80, 0.81, 0.82, 0.83], name="accuracy", every=100, is_evaluation=True))
    baseline.send(metric(0, [loss(step) for step in range(900)]))
    choose(connection, run, baseline)
    view = judge(connection, run, first_step=500)
    assert (view.state, view.metric, view.num_checks, view.drift.value) == ("within_limit", "accuracy", 4, 0.0)


def test_evaluations_at_other_steps_are_no_evidence(connection: Connection) -> None:
    run = StoredRun(connection, better={"accuracy": "higher"})
    baseline = StoredRun(connection, better={"accuracy": "higher"})
    run.send(metric(1, [0.5, 0.6, 0.7], name="accuracy", every=10, is_evaluation=True))
    baseline.send(metric(0, [0.5, 0.6, 0.7, 0.8], name="accuracy", every=10, is_evaluation=True))
    choose(connection, run, baseline)
    view = judge(connection, run)
    assert (view.state, view.reason, view.metric) == ("no_evidence", "no_common_steps", "accuracy")


def test_without_baseline_there_is_no_evidence(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1.0] * 100))
    view = judge(connection, run)
    assert (view.state, view.reason) == ("no_evidence", "no_baseline")


def test_nan_loss_is_a_breach_even_without_baseline_until_it_is_finite_again(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1.0, None]))
    view = judge(connection, run)
    assert (view.state, view.reason, view.metric, view.last_step) == ("breach", "nonfinite", "loss", 1)
    run.send(metric(2, [1.0]))
    assert judge(connection, run).state == "no_evidence"


def test_baseline_without_points_is_no_evidence(connection: Connection) -> None:
    run, baseline = StoredRun(connection), StoredRun(connection)
    run.send(metric(0, [1.0] * 100))
    baseline.send(steps(0))
    choose(connection, run, baseline)
    assert judge(connection, run).reason == "no_common_steps"


def test_resumed_run_is_compared_on_its_default_line(connection: Connection) -> None:
    baseline, run = StoredRun(connection), StoredRun(connection)
    baseline.send(metric(0, [2.0] * 400))
    run.send(metric(0, [2.0] * 200), metric(200, [None] * 100))
    run.restart()
    run.send(metric(200, [2.0] * 200))
    choose(connection, run, baseline)
    view = judge(connection, run)
    assert (view.state, view.drift.value, view.last_step) == ("within_limit", 0.0, 399)
