"""The sentences of a trial's outcome."""

from gradwire.client import Quality
from gradwire.trial.outcome import ArmOutcome, Outcome, Speedup
from gradwire.wording import aligned, number, processes


def report(outcome: Outcome) -> str:
    """Return the outcome in a few lines."""
    steps = min(outcome.baseline.num_steps, outcome.candidate.num_steps)
    whom = processes(outcome.device, outcome.num_ranks)
    lines = [
        f"Paired trial of {outcome.name}: {number(steps)} steps each on {whom}, seed {outcome.seed}.",
        "",
        *_table(outcome),
        "",
        _speed(outcome),
        _quality(outcome),
    ]
    if outcome.link:
        lines.append(f"Comparison: {outcome.link}")
    return "\n".join(lines)


def _table(outcome: Outcome) -> list[str]:
    arms = (outcome.baseline, outcome.candidate)
    losses = f"loss, last {outcome.num_last_losses} steps"
    rows = [
        ("", "uncompressed", outcome.plan.codec),
        ("step time", *(_milliseconds(arm) for arm in arms)),
        (losses, *("unknown" if arm.last_loss is None else f"{arm.last_loss:.6g}" for arm in arms)),
    ]
    return aligned(rows)


def _milliseconds(arm: ArmOutcome) -> str:
    return "unknown" if arm.timing.step_seconds is None else f"{1e3 * arm.timing.step_seconds:.4g} ms"


def _speed(outcome: Outcome) -> str:
    ratio, codec = outcome.speedup, outcome.plan.codec
    if ratio is None:
        return "Speed: too few steps to tell; about 30 are needed."
    if ratio.low <= 1 <= ratio.high:
        return f"Speed: no difference can be told on this machine: {_ratio(ratio)} the uncompressed speed."
    less = 1 - 1 / ratio.value
    time = f"{100 * less:.0f} % less time" if less > 0 else f"{-100 * less:.0f} % more time"
    return f"Speed: {codec} runs at {_ratio(ratio)} the uncompressed speed on this machine, {time}."


def _ratio(ratio: Speedup) -> str:
    return f"{ratio.value:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"


def _quality(outcome: Outcome) -> str:
    if outcome.unpaired_reason:
        return f"Not paired: {outcome.unpaired_reason}. Nothing can be said about quality."
    if outcome.quality is None:
        return "Quality: not judged, as no server is set; the server compares the runs."
    return quality_sentence(outcome.quality)


def quality_sentence(quality: Quality) -> str:
    """Return the server's comparison in a sentence."""
    drift, limit = quality.drift, f"limit {100 * quality.limit:g} %"
    checks = f"{quality.num_checks} checks, last at step {number(quality.last_step or 0)}"
    if quality.state == "no_evidence":
        return f"No evidence about quality: {_reason(quality)}. This does not mean quality is fine."
    if drift.value is None:
        return f"Quality beyond limit: {quality.metric} is not a finite number."
    if drift.low is None or drift.high is None:
        interval = ""
    else:
        interval = f" ({100 * drift.low:.2g} to {100 * drift.high:.2g} %; {limit})"
    difference = f"{quality.metric} is {abs(100 * drift.value):.2g} % {'worse' if drift.value > 0 else 'better'}"
    head = {
        "within_limit": "Quality within limit",
        "breach": "Quality beyond limit",
        "cannot_tell": "Cannot tell yet, as the interval lies across the limit",
    }[quality.state]
    return f"{head}: {difference} than uncompressed{interval}, {checks}."


def _reason(quality: Quality) -> str:
    return {
        "no_common_steps": "the runs have no loss at the same steps",
        "too_few_checks": "there are too few steps to compare",
        "no_baseline": "no baseline is chosen",
    }.get(quality.reason, quality.reason or "the server says no more")
