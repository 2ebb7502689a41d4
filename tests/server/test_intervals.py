import math
import random

import pytest
from gradwire_server.verdict.intervals import Estimate, mean, quotient, ratio, student_t
from hypothesis import given
from hypothesis import strategies as st

# Two-sided 95 %, from printed tables.
PRINTED = {
    1: 12.706,
    2: 4.303,
    5: 2.571,
    7: 2.365,
    10: 2.228,
    11: 2.201,
    15: 2.131,
    19: 2.093,
    30: 2.042,
    120: 1.980,
}


@pytest.mark.parametrize(("degrees", "printed"), PRINTED.items())
def test_student_t_agrees_with_printed_tables(degrees: int, printed: float) -> None:
    assert student_t(degrees) == pytest.approx(printed, abs=0.0006)


def test_student_t_falls_towards_the_normal_distribution() -> None:
    values = [student_t(degrees) for degrees in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert student_t(10**6) == pytest.approx(1.95996, abs=1e-4)


def test_mean_has_the_textbook_error() -> None:
    estimate = mean([1.0, 2.0, 3.0, 4.0])
    assert estimate is not None
    assert estimate.value == 2.5
    # With equal blocks the jackknife is exactly the standard error of the mean.
    assert estimate.error == pytest.approx(math.sqrt(5 / 3 / 4))
    assert estimate.low == pytest.approx(2.5 - 3.1824 * estimate.error)


def test_ratio_of_proportional_blocks_is_exact() -> None:
    estimate = ratio([1.0, 2.0, 5.0], [4.0, 8.0, 20.0])
    assert estimate is not None
    assert (estimate.value, estimate.error) == (0.25, 0.0)


@pytest.mark.parametrize(("above", "below"), [([1.0], [2.0]), ([1.0, 1.0], [1.0, 0.0])])
def test_ratio_without_enough_blocks_is_none(above: list[float], below: list[float]) -> None:
    assert ratio(above, below) is None


Blocks = st.lists(st.tuples(st.floats(0, 10), st.floats(0.1, 10)), min_size=2, max_size=30)


@given(Blocks, st.floats(0.01, 100))
def test_ratio_scales_with_its_numerator(blocks: list[tuple[float, float]], factor: float) -> None:
    above, below = [list(part) for part in zip(*blocks, strict=True)]
    one, other = ratio(above, below), ratio([factor * value for value in above], below)
    assert one is not None
    assert other is not None
    assert other.value == pytest.approx(factor * one.value)
    # The error is a difference of ratios, so what rounding leaves of it is in proportion to them.
    rounding = 1e-12 * max(1.0, *(abs(factor * value) for value in above)) / min(below)
    assert other.error == pytest.approx(factor * one.error, abs=rounding)


@given(Blocks)
def test_ratio_lies_between_the_extreme_blocks(blocks: list[tuple[float, float]]) -> None:
    estimate = ratio([above for above, _ in blocks], [below for _, below in blocks])
    assert estimate is not None
    single = [above / below for above, below in blocks]
    assert min(single) - 1e-9 <= estimate.value <= max(single) + 1e-9
    assert estimate.low <= estimate.value <= estimate.high


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    # 2,000 runs of ten blocks: 95 % intervals miss 100 of them, give or take 20 (two deviations).
    source = random.Random(7)
    misses = 0
    for _ in range(2000):
        below = [source.uniform(0.8, 1.2) for _ in range(10)]
        above = [0.3 * value + source.gauss(0, 0.05) for value in below]
        estimate = ratio(above, below)
        assert estimate is not None
        misses += not estimate.low <= 0.3 <= estimate.high
    assert 70 <= misses <= 140


def test_quotient_adds_relative_errors_in_squares() -> None:
    estimate = quotient(Estimate(10.0, 0.3, 20), Estimate(5.0, 0.2, 9))
    assert estimate.value == 2.0
    assert estimate.error == pytest.approx(2.0 * 0.05)
    assert estimate.num_blocks == 9
