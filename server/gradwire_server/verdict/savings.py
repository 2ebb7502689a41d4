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


def will_save(
    compressed: Sequence[StepSums], uncompressed: Sequence[StepSums], remaining_rank_steps: int | None
) -> Measure:
    """Return what the codec in use will save in the steps still to do.

    Args:
        compressed: Settled steps with the codec in use, in blocks.
        uncompressed: Settled uncompressed steps of the same attempt, in blocks.
        remaining_rank_steps: Steps still to do times ranks; None where the total is unknown.
    """
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
