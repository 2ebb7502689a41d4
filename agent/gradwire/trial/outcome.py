"""What came of a trial: whether the arms are a pair, step times, speed-up and losses."""

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from gradwire_protocol.plans import PlanSpec
from msgspec import Struct

from gradwire.client import Quality
from gradwire.trial.records import RankResult

# The first steps allocate, and DDP makes its buckets anew after the first.
_SHARE_LEFT_OUT = 0.1
_MIN_LEFT_OUT = 3

# Means of consecutive steps are compared, since single steps depend on their neighbours. Student's t of 95 % for
# the 18 degrees of freedom that two times ten means leave.
_NUM_BLOCKS = 10
_T = 2.101

# Losses of the last part of both runs, pooled for the reader; the server judges by more than that.
_SHARE_OF_LOSSES = 0.1

# Two passes of one model over the same data differ by rounding on a GPU, not at all on a CPU.
_CUDA_TOLERANCE = 1e-4


class Timing(Struct, frozen=True, kw_only=True):
    """Mean step time after the first steps, seconds, and its standard error; None of too few steps."""

    step_seconds: float | None
    standard_error: float | None = None


class Speedup(Struct, frozen=True, kw_only=True):
    """Uncompressed step time over compressed step time, with its interval of 95 %."""

    value: float
    low: float
    high: float


class ArmOutcome(Struct, frozen=True, kw_only=True):
    """One of the two runs."""

    run: str
    codec: str
    num_steps: int
    timing: Timing
    # Mean over ranks of the last losses; None where the script named none, or one is not finite.
    last_loss: float | None


class Outcome(Struct, frozen=True, kw_only=True):
    """The whole trial."""

    name: str
    plan: PlanSpec
    num_ranks: int
    device: str
    seed: int
    baseline: ArmOutcome
    candidate: ArmOutcome
    # Steps that `last_loss` is the mean of.
    num_last_losses: int
    speedup: Speedup | None
    # Why the two are no pair; empty if they are.
    unpaired_reason: str
    # By the server's own comparison; None without a server or where the arms are no pair.
    quality: Quality | None = None
    # The candidate's page, with the baseline beside it; empty without a server.
    link: str = ""


def arm_outcome(run: str, codec: str, results: Sequence[RankResult], num_common: int) -> ArmOutcome:
    """Return what one arm did; `num_common` steps are compared."""
    first = results[0]
    num_last = num_last_losses(num_common)
    last = [loss for result in results for loss in result.losses[:num_common][-num_last:]]
    is_known = bool(last) and all(math.isfinite(loss) for loss in last)
    return ArmOutcome(
        run=run,
        codec=codec,
        num_steps=len(first.losses),
        timing=timing(first.step_seconds[: num_common - 1]),
        last_loss=fmean(last) if is_known else None,
    )


def num_last_losses(num_steps: int) -> int:
    """Return over how many of the last steps a loss is the mean."""
    return max(1, round(num_steps * _SHARE_OF_LOSSES))


def timing(seconds: Sequence[float]) -> Timing:
    """Return the mean of the settled steps; its error comes from means over consecutive steps."""
    settled = seconds[max(_MIN_LEFT_OUT, round(len(seconds) * _SHARE_LEFT_OUT)) :]
    if not settled:
        return Timing(step_seconds=None)
    size = len(settled) // _NUM_BLOCKS
    if size == 0:
        return Timing(step_seconds=fmean(settled))
    # What does not fill blocks is left out at the beginning.
    settled = settled[len(settled) - size * _NUM_BLOCKS :]
    blocks = [fmean(settled[start : start + size]) for start in range(0, len(settled), size)]
    return Timing(step_seconds=fmean(blocks), standard_error=stdev(blocks) / math.sqrt(_NUM_BLOCKS))


def speedup(baseline: Timing, candidate: Timing) -> Speedup | None:
    """Return the ratio of the means, its interval from the errors of both; None of too few steps."""
    if not baseline.step_seconds or not candidate.step_seconds:
        return None
    if baseline.standard_error is None or candidate.standard_error is None:
        return None
    value = baseline.step_seconds / candidate.step_seconds
    errors = (baseline.standard_error / baseline.step_seconds, candidate.standard_error / candidate.step_seconds)
    width = _T * math.hypot(*errors)
    return Speedup(value=value, low=value * math.exp(-width), high=value * math.exp(width))


def why_unpaired(baseline: Sequence[RankResult], candidate: Sequence[RankResult]) -> str:
    """Return why two arms cannot be compared, empty if they can.

    Before the first exchange nothing is compressed: the parameters that training begins with are then equal bit for
    bit, and so are the first losses if the data and what is drawn at random are.
    """
    if len(baseline) != len(candidate):
        return f"they ran on {len(baseline)} and {len(candidate)} ranks"
    for ours, theirs in zip(baseline, candidate, strict=True):
        if ours.start_step != theirs.start_step:
            return f"one began after step {ours.start_step}, the other after step {theirs.start_step}"
        if ours.checksum != theirs.checksum:
            return (
                f"rank {ours.rank} began with other parameters (checksum {ours.checksum}, then {theirs.checksum}): "
                "the script seeds itself differently every time, or went on from what the first run saved"
            )
        if not _is_same_loss(ours, theirs):
            return (
                f"rank {ours.rank} began with a loss of {ours.losses[0]:.9g}, then of {theirs.losses[0]:.9g}, from "
                "the same parameters: the script draws its data from something else than its seed"
            )
    return ""


def _is_same_loss(ours: RankResult, theirs: RankResult) -> bool:
    first, other = ours.losses[0], theirs.losses[0]
    if not (math.isfinite(first) and math.isfinite(other)):
        return math.isfinite(first) == math.isfinite(other)
    tolerance = _CUDA_TOLERANCE if ours.device == "cuda" else 0.0
    return math.isclose(first, other, rel_tol=tolerance, abs_tol=0.0)
