import pytest
from gradwire_protocol.records import Points
from gradwire_server.database.tables import points, step_windows
from gradwire_server.series.branches import Leg, line
from gradwire_server.series.buckets import bucket_width
from gradwire_server.series.points import point_buckets, point_names
from gradwire_server.series.windows import blocks, stretches, window_buckets
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, insert
from stored_run import StoredRun, metric, steps


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 500))
def test_bucket_width_needs_at_most_the_asked_buckets_and_no_wider_ones(first: int, length: int, most: int) -> None:
    last = first + length
    width = bucket_width(first, last, most)
    assert last // width - first // width + 1 <= most
    assert width == 1 or last // (width // 2) - first // (width // 2) + 1 > most


def test_line_ends_an_attempt_where_a_newer_one_begins() -> None:
    legs = line([("c", 70), ("b", 61), ("a", 0)])
    assert legs == (Leg("c", 70), Leg("b", 61, 70), Leg("a", 0, 61))


def test_line_leaves_out_an_attempt_that_newer_ones_cover() -> None:
    assert line([("c", 10), ("b", 20), ("a", 0)]) == (Leg("c", 10), Leg("a", 0, 10))


def test_resumed_metric_has_one_value_for_each_step_and_keeps_the_old_branch(connection: Connection) -> None:
    # Field case C39: the late points of the first attempt are filed under it.
    run = StoredRun(connection)
    first = run.attempt
    run.send(metric(0, [0.0, 1.0, 2.0]), metric(5, [float(step) for step in range(5, 11)]))
    run.restart()
    run.send(metric(5, [100.0 + step for step in range(5, 16)]))
    run.restart(first)
    run.send(metric(3, [3.0, 4.0]))

    shown = point_buckets(connection, run.id, "model", "loss")
    assert [(bucket.first_step, bucket.last) for bucket in shown] == [
        *((step, float(step)) for step in range(5)),
        *((step, 100.0 + step) for step in range(5, 16)),
    ]
    old = point_buckets(connection, run.id, "model", "loss", attempt=first)
    assert [bucket.last for bucket in old] == [float(step) for step in range(11)]


def test_loss_of_several_nodes_is_weighted_and_its_spread_is_that_of_single_ranks(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(Points(name="loss", steps=(1,), values=(2.0,), lows=(1.0,), highs=(3.0,), weights=(30.0,)))
    run.send(Points(name="loss", steps=(1,), values=(6.0,), lows=(5.0,), highs=(9.0,), weights=(10.0,)), node=1)
    (bucket,) = point_buckets(connection, run.id, "model", "loss")
    assert (bucket.mean, bucket.last, bucket.min, bucket.max) == (3.0, 3.0, 1.0, 9.0)


def test_metric_of_an_older_agent_has_no_weights_and_its_spread_is_that_of_nodes(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(Points(name="loss", steps=(1, 2), values=(2.0, None), kinds={"1": "nan"}))
    run.send(Points(name="loss", steps=(1, 2), values=(6.0, None), kinds={"1": "nan"}), node=1)
    first, second = point_buckets(connection, run.id, "model", "loss")
    assert (first.mean, first.min, first.max) == (4.0, 2.0, 6.0)
    assert (second.mean, second.last, second.min, second.num_nonfinite) == (None, None, None, 2)


def test_attempts_of_one_millisecond_are_ordered_by_their_numbers() -> None:
    first, second = "01a00000-0001-7fff-8000-000000000000", "01a00000-0001-7000-8000-000000000000"
    assert line([(second, 10), (first, 0)]) == (Leg(second, 10), Leg(first, 0, 10))


def test_attempt_that_its_spool_delivers_after_its_successor_is_still_the_older_one(connection: Connection) -> None:
    run = StoredRun(connection)
    older, newer = "01a00000-0001-7fff-8000-000000000000", "01a00000-0002-7000-8000-000000000000"
    run.restart(newer)
    run.send(steps(20, transfer=0.010), metric(20, [2.0] * 10))
    run.restart(older)
    run.send(*(steps(first, transfer=0.040) for first in range(0, 40, 10)), metric(0, [1.0] * 40))
    shown = window_buckets(connection, run.id, "model")
    assert [round(bucket.exposed_transfer / bucket.num_rank_steps, 3) for bucket in shown] == [0.04, 0.04, 0.01]
    losses = point_buckets(connection, run.id, "model", "loss")
    assert [bucket.last for bucket in losses] == [1.0] * 20 + [2.0] * 10


def test_spike_among_a_million_points_stays_visible(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1.0]))
    row = {
        "run": run.id,
        "attempt": run.attempt,
        "model": "model",
        "node": 0,
        "name": "loss",
        "is_evaluation": False,
    }
    spike = 654_321
    for start in range(1, 1_000_000, 100_000):
        stop = min(start + 100_000, 1_000_000)
        values = [{**row, "step": step, "value": 99.0 if step == spike else 1.0} for step in range(start, stop)]
        connection.execute(insert(points), values)
    shown = point_buckets(connection, run.id, "model", "loss")
    assert len(shown) <= 300
    assert sum(bucket.count for bucket in shown) == 1_000_000
    (high,) = [bucket for bucket in shown if bucket.max == 99.0]
    assert high.first_step <= spike <= high.last_step
    assert high.min == high.last == 1.0


def test_non_finite_points_are_counted_and_enter_nothing_else(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1.0, 0.5, None, None, 0.0, -0.1, 0.4]))
    shown = point_buckets(connection, run.id, "model", "loss")
    assert [bucket.last for bucket in shown] == [1.0, 0.5, None, None, 0.0, -0.1, 0.4]
    assert sum(bucket.num_nonfinite for bucket in shown) == 2
    (whole,) = point_buckets(connection, run.id, "model", "loss", max_buckets=1)
    assert (whole.min, whole.max, whole.last, whole.count, whole.num_nonfinite) == (-0.1, 1.0, 0.4, 5, 2)
    assert whole.mean == pytest.approx(1.8 / 5)


def test_metric_of_only_nan_has_no_values(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [None, None]))
    shown = point_buckets(connection, run.id, "model", "loss")
    assert [(bucket.min, bucket.mean, bucket.last, bucket.count) for bucket in shown] == [(None, None, None, 0)] * 2


def test_extreme_values_read_back_exactly_and_an_overflowing_mean_is_unknown(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1e308, 5e-324, -0.0]), metric(3, [1.7e308, 1.7e308]))
    shown = point_buckets(connection, run.id, "model", "loss")
    assert [bucket.last for bucket in shown] == [1e308, 5e-324, -0.0, 1.7e308, 1.7e308]
    (whole,) = point_buckets(connection, run.id, "model", "loss", max_buckets=1)
    assert whole.max == 1.7e308
    assert whole.mean is None


def test_last_is_the_mean_over_nodes_at_the_newest_finite_step(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [5.0, 1.0, None]))
    run.send(metric(0, [5.0, 3.0, None]), node=1)
    (whole,) = point_buckets(connection, run.id, "model", "loss", max_buckets=1)
    assert whole.last == 2.0


def test_point_names_are_sorted_and_distinct(connection: Connection) -> None:
    run = StoredRun(connection)
    for name in ("train/loss", "a%2Fb", "a/b", "loss"):
        run.send(metric(0, [1.0, 2.0], name=name))
    StoredRun(connection).send(metric(0, [1.0], name="other"))
    assert point_names(connection, run.id, "model") == ["a%2Fb", "a/b", "loss", "train/loss"]


def test_windows_of_several_nodes_add_up(connection: Connection) -> None:
    run = StoredRun(connection)
    for node in (0, 1):
        for first in range(0, 100, 10):
            run.send(steps(first, ranks=4), node=node)
    shown = window_buckets(connection, run.id, "model", max_buckets=300)
    assert [(bucket.first_step, bucket.last_step) for bucket in shown] == [
        (step, step + 9) for step in range(0, 100, 10)
    ]
    assert {(bucket.num_steps, bucket.num_rank_steps) for bucket in shown} == {(10, 80)}
    assert shown[0].exposed_transfer == pytest.approx(80 * 0.040)
    assert shown[0].tokens == 80_000


def test_bucket_counts_known_time_apart_from_all_time(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0, transfer=0.030, pause=0.010), steps(10, transfer=None))
    (bucket,) = window_buckets(connection, run.id, "model", max_buckets=1)
    assert bucket.known_training == pytest.approx(20 * 0.100)
    assert bucket.training == pytest.approx(40 * 0.100)
    assert bucket.exposed_transfer / bucket.known_training == pytest.approx(0.30)
    assert bucket.exposed_communication == pytest.approx(20 * 0.030 + 20 * 0.040)


def test_resumed_windows_take_each_step_from_the_newest_attempt(connection: Connection) -> None:
    run = StoredRun(connection)
    first = run.attempt
    for step in range(0, 100, 10):
        run.send(steps(step, step=0.100))
    run.restart()
    run.send(steps(60, step=0.200, transfer=0.1), steps(70, step=0.200, transfer=0.1))
    shown = window_buckets(connection, run.id, "model")
    assert [bucket.first_step for bucket in shown] == list(range(0, 80, 10))
    assert [round(bucket.step / bucket.num_rank_steps, 3) for bucket in shown] == [0.1] * 6 + [0.2] * 2
    assert len(window_buckets(connection, run.id, "model", attempt=first)) == 10


def test_long_run_is_read_from_its_rollup(connection: Connection) -> None:
    run = StoredRun(connection)
    # The first step lies inside the first range of the rollup.
    for first in range(7, 30_007, 50):
        run.send(steps(first, 50))
    before = window_buckets(connection, run.id, "model")
    assert len(before) <= 300
    # What the chart of a long run shows does not need a single window of level 0.
    connection.execute(step_windows.delete().where(step_windows.c.level == 0))
    assert window_buckets(connection, run.id, "model") == before
    assert sum(bucket.num_rank_steps for bucket in before) == 60_000
    zoomed = window_buckets(connection, run.id, "model", first_step=10_000, last_step=10_099)
    assert zoomed == []


def test_old_buckets_stay_while_data_arrives(connection: Connection) -> None:
    run = StoredRun(connection)
    for first in range(0, 2000, 10):
        run.send(steps(first, 10))
    before = window_buckets(connection, run.id, "model", max_buckets=300)
    run.send(steps(2000, 10))
    assert window_buckets(connection, run.id, "model", max_buckets=300)[: len(before) - 1] == before[:-1]


def test_stretches_total_each_epoch_over_nodes(connection: Connection) -> None:
    run = StoredRun(connection)
    for node in (0, 1):
        run.send(steps(0), steps(10), steps(20, codec="int8", epoch=1, is_settling=True), node=node)
        run.send(steps(30, codec="int8", epoch=1, transfer=None), node=node)
    found = stretches(connection, run.id, "model", attempt=run.attempt)
    assert [(part.codec, part.is_settling, part.sums.num_steps, part.num_windows) for part in found] == [
        ("none", False, 20, 4),
        ("int8", True, 10, 2),
        ("int8", False, 10, 2),
    ]
    assert found[0].steps_per_window == 10
    assert found[2].sums.known_rank_steps == 0


def test_blocks_cover_every_step_once_and_are_no_shorter_than_windows(connection: Connection) -> None:
    run = StoredRun(connection)
    for first in range(7, 1007, 25):
        run.send(steps(first, 25))
    (stretch,) = stretches(connection, run.id, "model")
    parts = blocks(connection, run.id, "model", stretch, first_step=7, num_blocks=20)
    assert len(parts) == 20
    assert sum(part.num_rank_steps for part in parts) == 2000
    many = blocks(connection, run.id, "model", stretch, first_step=7, num_blocks=1000)
    assert len(many) == 40
