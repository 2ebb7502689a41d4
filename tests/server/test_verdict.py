"""Verdicts and savings of hand-made blocks whose answers are known exactly."""

import random
from collections.abc import Sequence

import pytest
from gradwire_server.runs.views import VerdictView
from gradwire_server.series.checks import MAX_CHECKS, Check
from gradwire_server.series.sums import StepSums
from gradwire_server.verdict import reasons
from gradwire_server.verdict.paying import paying_off
from gradwire_server.verdict.savings import could_save, saved, will_save
from gradwire_server.verdict.worth import Suggestion, worth_it
from hypothesis import given
from hypothesis import strategies as st

RANKS = 2
INT8 = Suggestion(codec="int8", wire_ratio=2.5)


def block(
    index: int,
    *,
    share: float | None = 0.43,
    step: float = 0.100,
    pause: float = 0.0,
    wait: float = 0.0,
    data_wait: float = 0.0,
    num_steps: int = 10,
) -> StepSums:
    """Return steps of `step` seconds on two ranks, `share` of them exposed transfer, the rest backward."""
    count = num_steps * RANKS
    transfer = (share or 0.0) * step
    is_known = share is not None
    return StepSums(
        first_step=index * num_steps,
        last_step=(index + 1) * num_steps - 1,
        num_steps=num_steps,
        num_rank_steps=count,
        step=(step + pause) * count,
        pause=pause * count,
        data_wait=data_wait * count,
        backward=(step - transfer - wait - data_wait) * count,
        exposed_communication=(transfer + wait) * count,
        exposed_transfer=transfer * count if is_known else 0.0,
        straggler_wait=wait * count if is_known else 0.0,
        known_step=(step + pause) * count if is_known else 0.0,
        known_pause=pause * count if is_known else 0.0,
        known_rank_steps=count if is_known else 0,
    )


def noisy(share: float, spread: float, num_blocks: int = 20) -> list[StepSums]:
    source = random.Random(3)
    return [block(index, share=share + source.uniform(-spread, spread)) for index in range(num_blocks)]


def judge(blocks: Sequence[StepSums], **changes: object) -> VerdictView:
    return worth_it(blocks, **{"world_size": RANKS, "suggestion": INT8, **changes})  # type: ignore[arg-type]


def test_worth_it_when_the_whole_interval_is_above_the_line() -> None:
    verdict = judge(noisy(0.43, 0.03), remaining_steps=1000)
    assert verdict.kind == "worth_it"
    assert verdict.share.value == pytest.approx(0.43, abs=0.01)
    assert verdict.share.low is not None
    assert 0.40 < verdict.share.low < verdict.share.value
    assert (verdict.first_step, verdict.last_step, verdict.num_steps) == (0, 199, 200)
    assert verdict.suggested_codec == "int8"
    assert verdict.expected_speedup == pytest.approx(1.30, abs=0.015)
    assert verdict.codec_cost.reason == reasons.ASSUMED
    assert verdict.remaining_seconds == pytest.approx(100)
    assert verdict.remaining_seconds_expected == pytest.approx(100 / verdict.expected_speedup)


def test_not_worth_it_names_the_largest_other_cost() -> None:
    verdict = judge([block(index, share=0.08, data_wait=0.055) for index in range(12)])
    assert verdict.kind == "not_worth_it"
    assert verdict.share.value == pytest.approx(0.08)
    assert verdict.largest_other == "data_wait"
    assert verdict.largest_other_share == pytest.approx(0.55)
    # What is left on the table is still said.
    assert verdict.expected_speedup == pytest.approx(1.002, abs=0.001)


def test_waiting_for_a_slow_rank_is_not_communication() -> None:
    verdict = judge([block(index, share=0.05, wait=0.060) for index in range(12)])
    assert verdict.kind == "not_worth_it"
    assert verdict.largest_other == "straggler_wait"
    assert verdict.largest_other_share == pytest.approx(0.60)


def test_cannot_say_across_the_line_and_how_many_more_steps_will_tell() -> None:
    verdict = judge(noisy(0.21, 0.10))
    assert verdict.kind == "cannot_say"
    assert verdict.reason == reasons.ACROSS_LINE
    assert verdict.share.low is not None
    assert verdict.share.high is not None
    assert verdict.share.low < 0.20 < verdict.share.high
    assert verdict.more_steps is not None
    assert verdict.more_seconds == pytest.approx(verdict.more_steps * 0.100)


def test_steps_said_to_decide_do_decide() -> None:
    # The truth at 22 % with noise: after as many more steps as the verdict asked for, it is no longer undecided.
    source = random.Random(6)
    shares = [0.22 + source.uniform(-0.12, 0.12) for _ in range(4000)]
    blocks = [block(index, share=share) for index, share in enumerate(shares)]
    verdict = judge(blocks[:10])
    assert verdict.kind == "cannot_say"
    assert verdict.more_steps is not None
    # Twice as many, since the first estimate of the spread is itself rough.
    enough = 10 + 2 * verdict.more_steps // 10
    assert judge(blocks[: enough + 1]).kind == "worth_it"


def test_cannot_say_with_too_few_steps_names_the_missing_ones() -> None:
    verdict = judge([block(index) for index in range(5)])
    assert (verdict.kind, verdict.reason) == ("cannot_say", reasons.TOO_FEW_STEPS)
    assert verdict.more_steps == 30
    assert verdict.more_seconds == pytest.approx(3.0)
    assert verdict.share.value == pytest.approx(0.43)


def test_cannot_say_when_the_share_lies_on_the_line() -> None:
    blocks = [block(index, share=0.20 + (0.05 if index % 2 else -0.05)) for index in range(20)]
    verdict = judge(blocks)
    assert (verdict.kind, verdict.reason, verdict.more_steps) == ("cannot_say", reasons.ON_LINE, None)


def test_cannot_say_without_steps() -> None:
    verdict = judge([])
    assert (verdict.kind, verdict.reason, verdict.share.value) == ("cannot_say", reasons.NO_STEPS, None)


def test_unknown_transfer_is_not_measured_and_never_zero() -> None:
    blocks = [block(index, share=None) for index in range(20)]
    verdict = judge(blocks, unknown_reason="the ranks' clocks cannot be compared")
    assert verdict.kind == "not_measured"
    assert verdict.share.value is None
    assert verdict.reason == verdict.share.reason == "the ranks' clocks cannot be compared"
    assert judge(blocks).reason == reasons.NO_TRANSFER


def test_share_rests_on_the_steps_whose_transfer_is_known() -> None:
    blocks = [block(index, share=0.40 if index % 2 else None) for index in range(20)]
    assert judge(blocks).share.value == pytest.approx(0.40)


def test_pauses_are_no_training_time() -> None:
    verdict = judge([block(index, share=0.40, pause=0.300) for index in range(20)], remaining_steps=100)
    assert verdict.share.value == pytest.approx(0.40)
    assert verdict.remaining_seconds == pytest.approx(100 * 0.400)
    assert verdict.expected_speedup is not None
    expected = 100 * (0.300 + 0.100 / verdict.expected_speedup)
    assert verdict.remaining_seconds_expected == pytest.approx(expected)


@pytest.mark.parametrize("blocks", [[], [block(index, share=0.0) for index in range(20)]])
def test_single_rank_has_nothing_to_gain(blocks: list[StepSums]) -> None:
    verdict = judge(blocks, world_size=1)
    assert (verdict.kind, verdict.reason, verdict.share.value) == ("not_worth_it", reasons.ONE_RANK, 0.0)


def test_measured_codec_cost_replaces_the_assumed_one() -> None:
    suggestion = Suggestion(codec="int8", wire_ratio=4.0, codec_cost=0.10)
    verdict = judge([block(index, share=0.40) for index in range(10)], suggestion=suggestion)
    assert verdict.expected_speedup == pytest.approx(1 / (1 - 0.40 * 0.75 + 0.10))
    assert verdict.codec_cost.value == 0.10
    assert verdict.codec_cost.reason == ""


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 10), st.integers(1, 500)), max_size=25),
    st.integers(2, 1024),
)
def test_verdict_of_any_blocks_is_well_formed(blocks: list[tuple[float, float, int]], ranks: int) -> None:
    made = [
        block(index, share=share, step=step, num_steps=num_steps)
        for index, (share, step, num_steps) in enumerate(blocks)
    ]
    verdict = judge(made, world_size=ranks)
    share = verdict.share
    if verdict.kind == "worth_it":
        assert share.low is not None
        assert share.low > verdict.line
    if verdict.kind == "not_worth_it":
        assert share.high is not None
        assert share.high < verdict.line
    for value in (share.value, share.low, share.high):
        assert value is None or 0 <= value <= 1 + 1e-12
    assert verdict.more_steps is None or verdict.more_steps >= 1
    if share.value is None:
        assert share.reason


def timed(step: float, spread: float = 0.001, num_blocks: int = 20) -> list[StepSums]:
    source = random.Random(5)
    return [block(index, step=step + source.uniform(-spread, spread)) for index in range(num_blocks)]


def test_paying_off_says_both_numbers_with_an_interval() -> None:
    verdict = paying_off(timed(0.100), timed(0.131), codec="int8")
    assert verdict.kind == "paying_off"
    assert verdict.speedup.value == pytest.approx(1.31, abs=0.005)
    assert verdict.speedup.low is not None
    assert verdict.speedup.high is not None
    assert 1.29 < verdict.speedup.low < verdict.speedup.value < verdict.speedup.high < 1.33
    assert verdict.num_uncompressed_steps == 200
    # The share is the one of uncompressed steps: success must not look like no need.
    assert verdict.share.value == pytest.approx(0.43)


def test_not_paying_off_when_every_step_takes_longer() -> None:
    verdict = paying_off(timed(0.104), timed(0.100), codec="onebit")
    assert verdict.kind == "not_paying_off"
    assert verdict.speedup.value == pytest.approx(1 / 1.04, abs=0.003)


def test_cannot_say_pays_while_the_interval_is_across_one() -> None:
    verdict = paying_off(timed(0.100, 0.05), timed(0.101, 0.05), codec="int8")
    assert (verdict.kind, verdict.reason) == ("cannot_say_pays", reasons.ACROSS_LINE)
    assert verdict.more_steps is not None


def test_cannot_say_pays_with_too_few_compressed_steps() -> None:
    verdict = paying_off(timed(0.100)[:3], timed(0.130), codec="int8")
    assert (verdict.kind, verdict.reason, verdict.more_steps) == ("cannot_say_pays", reasons.TOO_FEW_STEPS, 50)


@pytest.mark.parametrize("uncompressed", [[], timed(0.130)[:5]])
def test_cannot_say_pays_without_uncompressed_steps(uncompressed: list[StepSums]) -> None:
    verdict = paying_off(timed(0.100), uncompressed, codec="int8")
    assert verdict.kind == "cannot_say_pays"
    assert verdict.speedup.value is None
    assert verdict.speedup.reason == reasons.NO_UNCOMPRESSED_STEPS


def test_saved_counts_settling_steps_at_their_real_cost() -> None:
    total = block(0, step=0.080, num_steps=36_000)
    measure = saved(total, timed(0.075), timed(0.100))
    # 72,000 rank steps, 20 ms less each.
    assert measure.value == pytest.approx(72_000 * 0.020 / 3600, rel=0.02)
    assert measure.low is not None
    assert measure.high is not None
    assert measure.low < measure.value < measure.high


def test_saved_is_nothing_before_any_compressed_step_and_unknown_without_comparison() -> None:
    assert saved(None, [], timed(0.1)).value == 0.0
    assert saved(block(0), timed(0.1), []).reason == reasons.NO_UNCOMPRESSED_STEPS


def test_saving_is_negative_where_compression_is_slower() -> None:
    measure = saved(block(0, step=0.120, num_steps=1000), timed(0.120), timed(0.100))
    assert measure.value is not None
    assert measure.value < 0


def test_will_save_and_could_save_rest_on_the_steps_still_to_do() -> None:
    coming = will_save(timed(0.075), timed(0.100), remaining_rank_steps=144_000)
    assert coming.value == pytest.approx(1.0, rel=0.02)
    could = could_save(timed(0.100, 0.0), 1.25, remaining_rank_steps=180_000)
    assert could.value == pytest.approx(180_000 * 0.100 * 0.2 / 3600)
    assert will_save(timed(0.075), timed(0.100), None).reason == reasons.NO_TOTAL
    assert could_save(timed(0.100), 1.25, None).reason == reasons.NO_TOTAL


def windows(speeds: Sequence[float], every: int = 5000) -> list[Check]:
    """Return check windows `every` so many steps, in each of which the codec was so many times as fast."""
    step = every // 10
    return [
        Check(
            exact=block(index * step, step=0.1 * speed),
            before=block(index * step - 1, step=0.1),
            after=block(index * step + 1, step=0.1),
        )
        for index, speed in enumerate(speeds)
    ]


def test_more_windows_tell_what_too_few_leave_open() -> None:
    verdict = paying_off(noisy(0.1, 0.01), noisy(0.4, 0.01), codec="int8", checks=windows([1.15, 0.97] * 4))
    assert (verdict.kind, verdict.reason) == ("cannot_say_pays", reasons.ACROSS_LINE)
    assert verdict.speedup.low is not None
    width = (verdict.speedup.value or 0.0) - verdict.speedup.low
    # Eight windows lie 35 000 steps apart; the 200 steps between two of them would tell nothing more.
    assert verdict.more_steps == pytest.approx(35_000 * ((width / 0.06) ** 2 - 1), rel=0.1)


@pytest.mark.parametrize("speeds", [[1.2, 0.9] * 4, [1.05, 0.97] * (MAX_CHECKS // 2)])
def test_more_windows_than_are_compared_are_not_waited_for(speeds: list[float]) -> None:
    verdict = paying_off(noisy(0.1, 0.01), noisy(0.4, 0.01), codec="int8", checks=windows(speeds))
    assert (verdict.kind, verdict.reason) == ("cannot_say_pays", reasons.ON_LINE)
    assert verdict.more_steps is None
