"""What compression saved, will save and could save: three figures that are never mixed. All in rank-hours.

A step's time is training time, pauses left out, as in every verdict.
"""

from collections.abc import Sequence

from gradwire_server.runs.views import Measure
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.verdict import reasons
from gradwire_server.verdict.formula import time_saved
from gradwire_server.verdict.intervals import MIN_BLOCKS, Estimate, student_t
from gradwire_server.verdict.paying import step_seconds

SECONDS_PER_HOUR = 3600.0


def saved(total: StepSums | None, compressed: Sequence[StepSums], uncompressed: Sequence[StepSums]) -> Measure:
    """Return what the compressed steps of an attempt saved against its uncompressed ones.

    Args:
        total: All compressed steps, settling ones included: their cost is real. None when there are none.
        compressed: Settled compressed steps in blocks, for the interval.
        uncompressed: Settled uncompressed steps in blocks.
    """
    if total is None:
        return Measure(value=0.0, low=0.0, high=0.0)
    means = _means(compressed, uncompressed)
    if isinstance(means, str):
        return Measure(reason=means)
    spent = total.training / max(1, total.num_rank_steps)
    return _hours(*means, means[0].value - spent, total.num_rank_steps)


def saved_by_checks(total: StepSums | None, compressed: StepSums | None, speed: Estimate | None) -> Measure:
    """Return what the steps of one codec saved, by check windows.

    Args:
        total: All steps since the codec came into use, settling ones and those of the windows included: what they
            cost is subtracted.
        compressed: The settled compressed steps among them, and only they.
        speed: As `checked_speed` has it.
    """
    if total is None or compressed is None or speed is None or not compressed.num_rank_steps:
        return Measure(reason=reasons.TOO_FEW_STEPS)
    per_step = compressed.training / compressed.num_rank_steps
    scale = per_step * total.num_rank_steps / SECONDS_PER_HOUR
    spent = total.training / SECONDS_PER_HOUR
    return Measure(
        value=scale * speed.value - spent, low=scale * speed.low - spent, high=scale * speed.high - spent
    )


def together(first: Measure, second: Measure) -> Measure:
    """Return the sum of what is known of two savings; errors may go the same way, so that widths add up."""
    if first.value is None or second.value is None:
        return second if first.value is None else first
    low = None if first.low is None or second.low is None else first.low + second.low
    high = None if first.high is None or second.high is None else first.high + second.high
    return Measure(value=first.value + second.value, low=low, high=high)


def will_save(
    compressed: Sequence[StepSums],
    uncompressed: Sequence[StepSums],
    remaining_rank_steps: int | None,
    speed: Estimate | None = None,
) -> Measure:
    """Return what the codec in use will save in the steps still to do.

    Args:
        compressed: Settled steps with the codec in use, in blocks.
        uncompressed: Settled uncompressed steps of the same attempt, in blocks.
        remaining_rank_steps: Steps still to do times ranks; None where the total is unknown.
        speed: By check windows, which then count alone.
    """
    total = merge(compressed)
    if speed is not None and total is not None and total.num_rank_steps and remaining_rank_steps is not None:
        hours = total.training / total.num_rank_steps * remaining_rank_steps / SECONDS_PER_HOUR
        return Measure(value=hours * (speed.value - 1), low=hours * (speed.low - 1), high=hours * (speed.high - 1))
    means = _means(compressed, uncompressed)
    if isinstance(means, str):
        return Measure(reason=means)
    if remaining_rank_steps is None:
        return Measure(reason=reasons.NO_TOTAL)
    return _hours(*means, means[0].value - means[1].value, remaining_rank_steps)


def could_save(
    uncompressed: Sequence[StepSums], expected_speedup: float | None, remaining_rank_steps: int | None
) -> Measure:
    """Return what `expected_speedup` would save in the steps still to do; a formula has no interval."""
    total = merge(uncompressed)
    if total is None or total.num_rank_steps == 0:
        return Measure(reason=reasons.NO_STEPS)
    if expected_speedup is None:
        return Measure(reason=reasons.NO_SUGGESTION)
    if remaining_rank_steps is None:
        return Measure(reason=reasons.NO_TOTAL)
    hours = total.training / total.num_rank_steps * remaining_rank_steps / SECONDS_PER_HOUR
    return Measure(value=hours * time_saved(expected_speedup))


def _means(compressed: Sequence[StepSums], uncompressed: Sequence[StepSums]) -> tuple[Estimate, Estimate] | str:
    """Return the mean step without and with compression, or why they cannot be compared."""
    without, with_codec = step_seconds(uncompressed), step_seconds(compressed)
    if without is None or without.num_blocks < MIN_BLOCKS:
        return reasons.NO_UNCOMPRESSED_STEPS
    if with_codec is None or with_codec.num_blocks < MIN_BLOCKS:
        return reasons.TOO_FEW_STEPS
    return without, with_codec


def _hours(without: Estimate, with_codec: Estimate, per_step: float, rank_steps: int) -> Measure:
    """Return a difference of step times as hours, with the interval that both means leave."""
    error = (without.error**2 + with_codec.error**2) ** 0.5
    half = student_t(min(without.num_blocks, with_codec.num_blocks) - 1) * error
    scale = rank_steps / SECONDS_PER_HOUR
    return Measure(value=scale * per_step, low=scale * (per_step - half), high=scale * (per_step + half))
