import pytest
from gradwire_server.verdict.formula import (
    assumed_codec_cost,
    break_even_share,
    cost,
    speedup,
    steps_to_decide,
    time_saved,
    wire_ratio,
)
from hypothesis import given
from hypothesis import strategies as st

# The textbook case: 60 % less communication is a wire ratio of 2.5, and encoding adds 5 % to the computation.
TEXTBOOK_RATIO = 2.5


def textbook(share: float) -> float:
    return speedup(share, TEXTBOOK_RATIO, assumed_codec_cost(share))


def test_textbook_case_at_40_percent_is_1_27_times_and_21_percent_less_time() -> None:
    assert textbook(0.40) == pytest.approx(1.27, abs=0.005)
    assert time_saved(textbook(0.40)) == pytest.approx(0.21, abs=1e-9)


def test_textbook_case_at_43_percent_is_1_30_times_and_23_percent_less_time() -> None:
    assert textbook(0.43) == pytest.approx(1.30, abs=0.005)
    assert time_saved(textbook(0.43)) == pytest.approx(0.23, abs=0.005)


def test_textbook_case_at_54_percent_saves_30_percent_of_the_time() -> None:
    assert time_saved(textbook(0.54)) == pytest.approx(0.30, abs=0.005)


def test_textbook_case_breaks_even_at_7_7_percent() -> None:
    assert break_even_share(TEXTBOOK_RATIO) == pytest.approx(0.077, abs=0.0005)
    assert textbook(break_even_share(TEXTBOOK_RATIO)) == pytest.approx(1.0)


def test_textbook_case_saves_50_000_dollars_of_a_day_on_1_000_gpus() -> None:
    assert cost(24, 10_000, textbook(0.40)) == pytest.approx(50_000, rel=0.01)


def test_hidden_communication_gives_nothing_back() -> None:
    # 20 % raw of which four fifths are overlapped: 4 % exposed, and a codec of 3 % breaks even only at ratio 4.
    assert speedup(0.04, 4.0, 0.03) == pytest.approx(1.0)
    assert speedup(0.04, 2.0, 0.03) < 1


Shares = st.floats(0, 0.95)
Ratios = st.floats(1, 64)


@given(Shares, Ratios, st.floats(0, 0.5))
def test_speedup_never_passes_what_free_communication_would_give(share: float, ratio: float, codec: float) -> None:
    assert 0 < speedup(share, ratio, codec) <= 1 / (1 - share) + 1e-9


@given(Shares, Ratios, Ratios, st.floats(0, 0.5))
def test_speedup_grows_with_the_wire_ratio(share: float, one: float, other: float, codec: float) -> None:
    low, high = sorted((one, other))
    assert speedup(share, low, codec) <= speedup(share, high, codec) + 1e-12


@given(st.floats(0.1, 10))
def test_speed_and_time_saved_say_the_same(speed: float) -> None:
    assert (1 - time_saved(speed)) * speed == pytest.approx(1.0)


def test_wire_ratio_counts_against_the_dtype_that_is_sent() -> None:
    assert wire_ratio(4_000_000, 1_000_000, 8.0625) == pytest.approx(3.97, abs=0.005)
    assert wire_ratio(2_000_000, 1_000_000, 8.0625) == pytest.approx(1.98, abs=0.005)
    assert wire_ratio(2_000_000, 1_000_000, 16.0) == 1.0
    assert wire_ratio(0, 0, 16.0) == 2.0


def test_steps_to_decide_quadruple_when_the_distance_halves() -> None:
    # 100 steps left a half width of 4 points; at 2 points from the line four times as many are needed.
    assert steps_to_decide(100, 0.22, 0.04, 0.20) == pytest.approx(300, abs=1)
    assert steps_to_decide(100, 0.21, 0.04, 0.20) == pytest.approx(1500, abs=1)
    assert steps_to_decide(100, 0.20, 0.04, 0.20) is None
