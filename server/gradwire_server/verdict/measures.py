"""Measures from blocks of steps: a ratio of two sums with its interval, or the reason why there is none."""

from collections.abc import Callable, Sequence

from gradwire_server.runs.views import Measure
from gradwire_server.series.sums import StepSums
from gradwire_server.verdict import reasons
from gradwire_server.verdict.intervals import Estimate, ratio

Sum = Callable[[StepSums], float]


def ratio_of(blocks: Sequence[StepSums], numerator: Sum, denominator: Sum) -> Estimate | None:
    """Estimate a ratio of sums over blocks; blocks with nothing in the denominator say nothing and are left out."""
    told = [block for block in blocks if denominator(block) > 0]
    return ratio([numerator(block) for block in told], [denominator(block) for block in told]) if told else None


def measure(
    blocks: Sequence[StepSums],
    numerator: Sum,
    denominator: Sum,
    *,
    scale: float = 1.0,
    most: float | None = None,
    reason: str = reasons.NO_STEPS,
) -> Measure:
    """Return `scale` times a ratio of sums as a `Measure`.

    Args:
        blocks: Blocks of steps; one alone gives a value without an interval.
        numerator: What to add up above.
        denominator: What to add up below.
        scale: Factor, such as the number of ranks.
        most: Largest value possible, which the interval does not pass; it never goes below 0.
        reason: Why there is no value, when there is none.
    """
    below = sum(denominator(block) for block in blocks)
    if below <= 0:
        return Measure(reason=reason)
    estimate = ratio_of(blocks, numerator, denominator)
    if estimate is None:
        return Measure(value=scale * sum(numerator(block) for block in blocks) / below)
    return as_measure(estimate, scale=scale, least=0.0, most=most)


def as_measure(
    estimate: Estimate, *, scale: float = 1.0, least: float | None = None, most: float | None = None
) -> Measure:
    """Return an estimate as a `Measure`, its interval kept between `least` and `most`."""
    low, high = scale * estimate.low, scale * estimate.high
    return Measure(
        value=scale * estimate.value,
        low=low if least is None else max(least, low),
        high=high if most is None else min(most, high),
    )


def exposed_transfer(block: StepSums) -> float:
    """Exposed transfer where it is known, seconds."""
    return block.exposed_transfer


def known_training(block: StepSums) -> float:
    """Training time whose transfer is known, seconds."""
    return block.known_training


def training(block: StepSums) -> float:
    """Training time, pauses left out, seconds."""
    return block.training


def rank_steps(block: StepSums) -> float:
    """Steps, each counted once for every rank."""
    return float(block.num_rank_steps)
