"""What compression saved, will save and could save: three figures that are never mixed. All in rank-hours."""

from collections.abc import Sequence

from gradwire_server.runs.views import Measure, SavingView, VerdictView
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.verdict import reasons
from gradwire_server.verdict.formula import time_saved
from gradwire_server.verdict.intervals import MIN_BLOCKS, Estimate, student_t
from gradwire_server.verdict.paying import step_seconds

SECONDS_PER_HOUR = 3600.0


def while_compressed(
    compressed_total: StepSums | None,
    compressed: Sequence[StepSums],
    uncompressed: Sequence[StepSums],
    *,
    remaining_rank_steps: int | None,
) -> SavingView:
    """Return what was saved and will be saved.

    Args:
        compressed_total: All compressed steps of the attempt, settling ones included: their cost is real.
        compressed: Settled steps with the codec in use, in blocks.
        uncompressed: Settled uncompressed steps of the same attempt, in blocks.
        remaining_rank_steps: Steps still to do times ranks, where the total is known.
    """
    without, with_codec = step_seconds(uncompressed), step_seconds(compressed)
    if without is None or without.num_blocks < MIN_BLOCKS:
        return _unknown(reasons.NO_UNCOMPRESSED_STEPS)
    if with_codec is None or with_codec.num_blocks < MIN_BLOCKS or compressed_total is None:
        return _unknown(reasons.TOO_FEW_STEPS)
    spent = compressed_total.training / max(1, compressed_total.num_rank_steps)
    saved = _hours(without, with_codec, without.value - spent, compressed_total.num_rank_steps)
    if remaining_rank_steps is None:
        coming = Measure(reason=reasons.NO_TOTAL)
    else:
        coming = _hours(without, with_codec, without.value - with_codec.value, remaining_rank_steps)
    return SavingView(
        saved_hours=saved, will_save_hours=coming, could_save_hours=Measure(reason=reasons.IS_COMPRESSED)
    )


def while_uncompressed(
    verdict: VerdictView,
    saved_before: Measure,
    uncompressed: Sequence[StepSums],
    *,
    remaining_rank_steps: int | None,
) -> SavingView:
    """Return what was saved before the return to uncompressed, and what the suggested codec could save.

    Args:
        verdict: Of `worth_it`, with its expected speed-up.
        saved_before: Saved by compressed steps earlier in the attempt.
        uncompressed: Settled uncompressed steps, in blocks.
        remaining_rank_steps: Steps still to do times ranks, where the total is known.
    """
    total = merge(uncompressed)
    if verdict.expected_speedup is None or total is None:
        could = Measure(reason=verdict.reason or reasons.NO_STEPS)
    elif remaining_rank_steps is None:
        could = Measure(reason=reasons.NO_TOTAL)
    else:
        mean = total.training / max(1, total.num_rank_steps)
        hours = mean * remaining_rank_steps / SECONDS_PER_HOUR
        could = Measure(value=max(0.0, hours * time_saved(verdict.expected_speedup)))
    return SavingView(
        saved_hours=saved_before, will_save_hours=Measure(reason=reasons.IS_UNCOMPRESSED), could_save_hours=could
    )


def _hours(without: Estimate, with_codec: Estimate, per_step: float, rank_steps: int) -> Measure:
    """Return a difference of step times as hours, with the interval of both means."""
    error = (without.error**2 + with_codec.error**2) ** 0.5
    half = student_t(min(without.num_blocks, with_codec.num_blocks) - 1) * error
    scale = rank_steps / SECONDS_PER_HOUR
    return Measure(value=scale * per_step, low=scale * (per_step - half), high=scale * (per_step + half))


def _unknown(reason: str) -> SavingView:
    return SavingView(
        saved_hours=Measure(reason=reason),
        will_save_hours=Measure(reason=reason),
        could_save_hours=Measure(reason=reasons.IS_COMPRESSED),
    )
