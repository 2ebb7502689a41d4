"""Is compression paying off? Asked while compressed, from measured step times with and without.

A step's time is training time for each rank: pauses are left out, and so are the settling steps after a switch.
"""

import math
from collections.abc import Sequence

from msgspec.structs import replace

from gradwire_server.runs.views import Measure, VerdictView
from gradwire_server.series.checks import MAX_CHECKS, Check
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.verdict import reasons
from gradwire_server.verdict.formula import steps_to_decide
from gradwire_server.verdict.intervals import MIN_BLOCKS, Estimate, quotient, ratio
from gradwire_server.verdict.measures import (
    as_measure,
    exposed_transfer,
    known_training,
    measure,
    rank_steps,
    ratio_of,
    training,
)
from gradwire_server.verdict.worth import LINE, MAX_STEPS_TO_DECIDE

# With fewer, Student's t makes the interval wider than the doubt whether steps from before the switch still count.
MIN_CHECKS = 4


def paying_off(
    compressed: Sequence[StepSums],
    uncompressed: Sequence[StepSums],
    *,
    codec: str,
    line: float = LINE,
    checks: Sequence[Check] = (),
) -> VerdictView:
    """Judge the codec in use by steps of the same attempt.

    Args:
        compressed: Settled steps with the codec in use, in blocks, oldest first.
        uncompressed: Settled uncompressed steps of the same attempt, in blocks, oldest first.
        codec: Name of the codec in use.
        line: Share from which compression is worth it, for the share that is shown beside.
        checks: Check windows of the codec; with enough of them, they alone are compared.
    """
    verdict = _about(compressed, uncompressed, codec, line)
    if (checked := checked_speed(checks)) is not None:
        return _decide(replace(verdict, num_checks=len(checks)), compressed, checked, checks)
    with_codec = step_seconds(compressed)
    without = step_seconds(uncompressed)
    if without is None or without.num_blocks < MIN_BLOCKS:
        return replace(
            verdict, speedup=Measure(reason=reasons.NO_UNCOMPRESSED_STEPS), reason=reasons.NO_UNCOMPRESSED_STEPS
        )
    if with_codec is None or with_codec.num_blocks < MIN_BLOCKS:
        return _wait(verdict, compressed, reasons.TOO_FEW_STEPS)
    return _decide(verdict, compressed, quotient(without, with_codec))


def checked_speed(checks: Sequence[Check]) -> Estimate | None:
    """Return how many times as fast compressed steps are as the uncompressed ones amid them; None with too few.

    Each window is compared with its own neighbours, so that what changes over hours does not count as error.
    """
    if len(checks) < MIN_CHECKS:
        return None
    return ratio([check.exact_seconds for check in checks], [check.compressed_seconds for check in checks])


def _decide(
    verdict: VerdictView, compressed: Sequence[StepSums], speed: Estimate, checks: Sequence[Check] = ()
) -> VerdictView:
    verdict = replace(verdict, speedup=as_measure(speed, least=0.0))
    if speed.low > 1:
        return replace(verdict, kind="paying_off")
    if speed.high < 1:
        return replace(verdict, kind="not_paying_off")
    return _across(verdict, compressed, speed, checks)


def step_seconds(blocks: Sequence[StepSums]) -> Estimate | None:
    """Estimate the mean seconds of training of one rank's step."""
    return ratio_of(blocks, training, rank_steps)


def _about(
    compressed: Sequence[StepSums], uncompressed: Sequence[StepSums], codec: str, line: float
) -> VerdictView:
    total, before = merge(compressed), merge(uncompressed)
    return VerdictView(
        kind="cannot_say_pays",
        share=measure(
            uncompressed, exposed_transfer, known_training, most=1.0, reason=reasons.NO_UNCOMPRESSED_STEPS
        ),
        line=line,
        codec=codec,
        suggested_codec="",
        first_step=total.first_step if total else None,
        last_step=total.last_step if total else None,
        num_steps=total.num_steps if total else 0,
        num_uncompressed_steps=before.num_steps if before else 0,
    )


def _wait(verdict: VerdictView, compressed: Sequence[StepSums], reason: str) -> VerdictView:
    total = merge(compressed)
    verdict = replace(verdict, speedup=Measure(reason=reason), reason=reason)
    if total is None:
        return verdict
    more = math.ceil((MIN_BLOCKS - len(compressed)) * total.num_steps / len(compressed))
    return _with_more(verdict, total, max(1, more))


def _across(
    verdict: VerdictView, compressed: Sequence[StepSums], speed: Estimate, checks: Sequence[Check]
) -> VerdictView:
    """Say how many more steps will tell; where `checks` decide, only more of them will, and so many are read."""
    total = merge(compressed)
    num_steps = checks[-1].exact.last_step - checks[0].exact.first_step if checks else verdict.num_steps
    steps = steps_to_decide(num_steps, speed.value, speed.half_width, 1.0)
    if total is None or steps is None or steps > MAX_STEPS_TO_DECIDE or _are_too_many(checks, steps / num_steps):
        return replace(verdict, reason=reasons.ON_LINE)
    return _with_more(replace(verdict, reason=reasons.ACROSS_LINE), total, steps)


def _are_too_many(checks: Sequence[Check], more: float) -> bool:
    """Return whether windows for `more` times the steps would be more than are ever compared."""
    return len(checks) * (1 + more) > MAX_CHECKS


def _with_more(verdict: VerdictView, total: StepSums, more_steps: int) -> VerdictView:
    seconds = more_steps * total.step / max(1, total.num_rank_steps)
    return replace(verdict, more_steps=more_steps, more_seconds=seconds)
