"""Drift against a baseline, from checks at equal steps: a pure function with three answers and never a guess."""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gradwire_server.runs.views import Measure, QualityView
from gradwire_server.verdict.intervals import mean
from gradwire_server.verdict.measures import as_measure

# Relative; half a per cent is what the field accepts.
LIMIT = 0.005

# Two checks have an interval so wide that it tells nothing.
MIN_CHECKS = 3

Better = Literal["higher", "lower"]


class Check(Struct, frozen=True):
    """One metric of both runs at the same step, or over the same steps; None stands for NaN or infinity."""

    step: int
    value: float | None
    baseline: float | None


def compare(checks: Sequence[Check], *, better: Better, limit: float = LIMIT) -> QualityView:
    """Judge the checks; the caller fills in metric and baseline.

    Args:
        checks: At steps that both runs have, ascending.
        better: Direction of the metric.
        limit: Largest relative drift that is accepted, more than 0.

    Returns:
        "breach" if a value is not finite where the baseline's is, or the whole interval lies beyond the limit;
        "within_limit" if the whole interval lies below it, "cannot_tell" if it lies across; else "no_evidence".
    """
    # Nothing drifts relative to a baseline of 0, or to one that is not finite.
    told = [check for check in checks if check.baseline]
    if not told:
        return QualityView(state="no_evidence", reason="no_common_steps", limit=limit)
    last = told[-1]
    assert last.baseline is not None
    is_lower = better == "lower"
    unknown = QualityView(
        state="no_evidence",
        reason="too_few_checks",
        limit=limit,
        floor=last.baseline + (1 if is_lower else -1) * limit * abs(last.baseline),
        num_checks=len(told),
        last_step=last.step,
    )
    if any(check.value is None for check in told):
        return replace(unknown, state="breach", reason="nonfinite", drift=Measure(reason="nonfinite"))
    drifts = [_drift(check, is_lower) for check in told]
    estimate = mean(drifts)
    if estimate is None or len(told) < MIN_CHECKS or not math.isfinite(estimate.half_width):
        return unknown
    state: Literal["within_limit", "breach", "cannot_tell"] = "cannot_tell"
    if estimate.high < limit:
        state = "within_limit"
    elif estimate.low > limit:
        state = "breach"
    return replace(unknown, state=state, reason="", drift=as_measure(estimate))


def _drift(check: Check, is_lower: bool) -> float:
    assert check.value is not None
    assert check.baseline
    difference = (check.value - check.baseline) / abs(check.baseline)
    return difference if is_lower else -difference


def pool(checks: Sequence[Check], num_checks: int) -> list[Check]:
    """Pool noisy checks at single steps into at most `num_checks` checks over ranges of steps.

    The mean of a range is taken over the same steps of both runs; a value that is not finite makes its whole range
    not finite, and steps at which the baseline has none are left out.
    """
    told = [check for check in checks if check.baseline is not None]
    size = max(1, math.ceil(len(told) / num_checks))
    return [_mean_check(told[start : start + size]) for start in range(0, len(told), size)]


def _mean_check(part: Sequence[Check]) -> Check:
    values = [check.value for check in part if check.value is not None]
    baselines = [check.baseline for check in part if check.baseline is not None]
    value = math.fsum(values) / len(part) if len(values) == len(part) else None
    return Check(part[-1].step, value, math.fsum(baselines) / len(part))
