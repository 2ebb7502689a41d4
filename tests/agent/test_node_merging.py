"""A node's windows and losses are the exact sums and means of its ranks'."""

import math

import pytest
from gradwire.transport.merging import (
    PATIENCE_SECONDS,
    LossMerger,
    WindowMerger,
    merge_windows,
    points,
    weighted_mean,
)
from gradwire_protocol.coding import decode, encode, validate_record
from gradwire_protocol.records import PhaseSeconds, Points, RankSums, StepWindow
from hypothesis import given
from hypothesis import strategies as st


def window(rank: int, first_step: int = 1, **changes: object) -> StepWindow:
    values: dict[str, object] = {
        "first_step": first_step,
        "last_step": first_step + 9,
        "num_steps": 10,
        "num_rank_steps": 10,
        "epoch": 3,
        "codec": "int8",
        "started_at": 100.0 + rank,
        "wall_seconds": 1.0 + rank / 10,
        "seconds": PhaseSeconds(step=1.0 + rank, forward=0.25, exposed_transfer=0.5, straggler_wait=0.125),
        "step_seconds_min": 0.09 + rank / 100,
        "step_seconds_max": 0.25 + rank / 4,
        "logical_bytes": 1000,
        "wire_bytes": 250 + rank,
        "samples": 32,
        "tokens": 4096,
        "ranks": (RankSums(rank=rank, step_seconds=1.0 + rank, straggler_wait_seconds=0.125),),
    }
    return StepWindow(**{**values, **changes})  # type: ignore[arg-type]


def test_merged_window_adds_seconds_and_counts_over_ranks() -> None:
    merged = merge_windows([window(0), window(1)])
    assert merged.seconds == PhaseSeconds(step=3.0, forward=0.5, exposed_transfer=1.0, straggler_wait=0.25)
    assert (merged.num_steps, merged.num_rank_steps) == (10, 20)
    assert (merged.logical_bytes, merged.wire_bytes, merged.samples, merged.tokens) == (2000, 501, 64, 8192)
    assert (merged.step_seconds_min, merged.step_seconds_max) == (0.09, 0.5)
    assert (merged.started_at, merged.wall_seconds) == (100.0, 1.1)
    assert [rank.rank for rank in merged.ranks] == [0, 1]
    assert (merged.first_step, merged.last_step, merged.epoch, merged.codec) == (1, 10, 3, "int8")


def test_what_one_rank_does_not_know_the_node_does_not_know_either() -> None:
    unknown = window(1, seconds=PhaseSeconds(step=1.0), unknown_reason="no pulse")
    merged = merge_windows([window(0), unknown])
    assert merged.seconds.exposed_transfer is None
    assert merged.seconds.straggler_wait is None
    assert merged.seconds.step == 2.0
    assert merged.unknown_reason == "no pulse"


def test_reasons_of_several_ranks_are_kept_once_each() -> None:
    reasons = ["a", "b", "a", ""]
    merged = merge_windows([window(rank, unknown_reason=reason) for rank, reason in enumerate(reasons)])
    assert merged.unknown_reason == "a; b"


def test_window_comes_out_when_all_ranks_reported_and_not_before() -> None:
    merger = WindowMerger((4, 5, 6))
    assert merger.add(5, window(5), now=0.0) == []
    assert merger.add(4, window(4), now=0.1) == []
    (merged,) = merger.add(6, window(6), now=0.2)
    assert [rank.rank for rank in merged.ranks] == [4, 5, 6]
    assert merger.take_due(math.inf) == []


@pytest.mark.parametrize("change", [{"epoch": 4}, {"codec": "none"}, {"is_settling": True}, {"last_step": 12}])
def test_windows_that_differ_in_kind_are_never_added(change: dict[str, object]) -> None:
    merger = WindowMerger((0, 1))
    assert merger.add(0, window(0), now=0.0) == []
    assert merger.add(1, window(1, **change), now=0.0) == []
    assert [one.num_rank_steps for one in merger.take_due(math.inf)] == [10, 10]


def test_missing_rank_delays_a_window_only_for_a_while() -> None:
    merger = WindowMerger((0, 1))
    merger.add(0, window(0), now=10.0)
    assert merger.next_due_at == 10.0 + PATIENCE_SECONDS
    assert merger.take_due(10.0 + PATIENCE_SECONDS - 0.01) == []
    (partial,) = merger.take_due(10.0 + PATIENCE_SECONDS)
    assert partial.num_rank_steps == 10
    assert merger.next_due_at == math.inf
    assert merger.add(1, window(1), now=20.0) == [], "the late part waits for the other rank again"
    (late,) = merger.take_due(math.inf)
    assert late.num_rank_steps == 10


def test_same_steps_twice_from_one_rank_stay_two_windows() -> None:
    merger = WindowMerger((0, 1))
    merger.add(0, window(0), now=0.0)
    (first,) = merger.add(0, window(0), now=0.0)
    assert first.num_rank_steps == 10
    (second,) = merger.add(1, window(1), now=0.0)
    assert second.num_rank_steps == 20


def test_losses_are_the_weighted_mean_over_ranks_in_step_order() -> None:
    merger = LossMerger((0, 1))
    merger.add(0, [2, 1], [4.0, 2.0], [1.0, 3.0], now=0.0)
    assert merger.take(0.0) == (None, [])
    merger.add(1, [1, 2], [6.0, 8.0], [1.0, 3.0], now=0.0)
    taken, events = merger.take(0.0)
    assert taken == Points(
        name="loss", steps=(1, 2), values=(3.0, 7.0), lows=(2.0, 4.0), highs=(6.0, 8.0), weights=(4.0, 4.0)
    )
    assert events == []


def test_ranks_whose_loss_is_not_finite_are_named_when_they_change() -> None:
    merger = LossMerger((4, 5, 6))
    nan = math.nan
    losses = {4: [1.0, 1.0, nan, nan, 1.0, 1.0], 5: [1.0, nan, nan, nan, 1.0, math.inf], 6: [2.0] * 6}
    for rank, values in losses.items():
        merger.add(rank, range(1, 7), values, [1.0] * 6, now=0.0)
    taken, events = merger.take(0.0)
    assert taken is not None
    assert taken.kinds == {"1": "nan", "2": "nan", "3": "nan", "5": "+inf"}
    assert (taken.lows, taken.highs) == ((1.0, 1.0, 2.0, 2.0, 1.0, 1.0), (2.0,) * 6)
    assert [(event.step, event.data["ranks"]) for event in events] == [(2, "5"), (3, "4,5"), (6, "5")]
    assert events[1].message == "the loss of rank 4, 5 is not finite"
    for record in (taken, *events):
        validate_record(decode(encode(record), type(record)), field="")


def test_loss_of_no_finite_part_has_no_spread() -> None:
    merger = LossMerger((0,))
    merger.add(0, [1], [math.nan], [0.0], now=0.0)
    taken, _ = merger.take(0.0)
    assert taken is not None
    assert (taken.values, taken.lows, taken.highs, taken.weights) == ((None,), (None,), (None,), (1.0,))


def test_missing_rank_delays_a_loss_only_for_a_while() -> None:
    merger = LossMerger((0, 1))
    merger.add(0, [1], [4.0], [1.0], now=0.0)
    assert merger.take(PATIENCE_SECONDS - 0.01) == (None, [])
    taken, _ = merger.take(PATIENCE_SECONDS)
    assert taken is not None
    assert (taken.steps, taken.values, taken.weights) == ((1,), (4.0,), (1.0,))


def test_losses_that_wait_are_bounded() -> None:
    merger = LossMerger((0, 1))
    steps = list(range(12_000))
    merger.add(0, steps, [1.0] * len(steps), [1.0] * len(steps), now=0.0)
    taken, _ = merger.take(0.0)
    assert taken is not None
    assert taken.steps == tuple(range(2_000)), "the oldest go first"


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ([(math.nan, 1.0), (1.0, 1.0)], "nan"),
        ([(math.inf, 1.0), (1.0, 1.0)], "+inf"),
        ([(-math.inf, 0.0), (1.0, 1.0)], "-inf"),
        ([(math.inf, 1.0), (-math.inf, 1.0)], "nan"),
    ],
)
def test_one_non_finite_part_makes_the_step_non_finite(parts: list[tuple[float, float]], kind: str) -> None:
    merger = LossMerger((0, 1))
    for rank, (value, weight) in enumerate(parts):
        merger.add(rank, [7], [value], [weight], now=0.0)
    taken, _ = merger.take(0.0)
    assert taken is not None
    assert (taken.values, taken.kinds) == ((None,), {"0": kind})
    validate_record(decode(encode(taken), Points), field="")


def test_weights_that_cannot_weigh_count_nothing() -> None:
    assert weighted_mean([(1.0, 1.0), (9.0, 0.0), (9.0, math.nan), (9.0, -1.0)]) == 1.0
    assert weighted_mean([(1.0, 0.0), (3.0, 0.0)]) == 2.0


@given(
    st.lists(
        st.tuples(st.floats(-1e300, 1e300), st.floats(0, 1e300, exclude_min=True, allow_subnormal=False)),
        min_size=1,
        max_size=8,
    )
)
def test_weighted_mean_lies_between_its_values(parts: list[tuple[float, float]]) -> None:
    values = [value for value, _ in parts]
    span = max(1.0, max(abs(value) for value in values)) * 1e-12
    assert min(values) - span <= weighted_mean(parts) <= max(values) + span


def test_points_name_non_finite_values_by_index() -> None:
    made = points("accuracy", [1, 2, 3, 4], [0.5, math.nan, math.inf, -math.inf], is_evaluation=True)
    assert made.values == (0.5, None, None, None)
    assert made.kinds == {"1": "nan", "2": "+inf", "3": "-inf"}
    assert made.is_evaluation
    validate_record(decode(encode(made), Points), field="")
