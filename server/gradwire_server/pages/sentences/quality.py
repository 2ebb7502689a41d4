"""Does the model stay as good as without compression?"""

from dataclasses import dataclass

from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import QualityView


@dataclass(frozen=True)
class Quality:
    """The answer in two parts: the state, and what it rests on."""

    state: str
    evidence: str


def quality(words: Wording, view: QualityView, *, can_choose: bool = True) -> Quality:
    """Return the state with the numbers it rests on and what follows from it.

    Args:
        words: Of the reader.
        view: What is known.
        can_choose: There is a run that could be the baseline.
    """
    evidence = {
        "within_limit": _within_limit,
        "breach": _breach,
        "cannot_tell": _cannot_tell,
        "no_evidence": _no_evidence,
    }[view.state](words, view)
    if view.reason == "no_baseline" and can_choose:
        evidence = words.join((evidence, words.say("Choose a baseline.")))
    return Quality(state(words, view), evidence)


def state(words: Wording, view: QualityView) -> str:
    """Return the state alone."""
    return {
        "within_limit": words.say("Within limit"),
        "breach": words.say("Beyond limit"),
        "cannot_tell": words.say("Cannot tell yet"),
        "no_evidence": words.say("No evidence"),
    }[view.state]


def _within_limit(words: Wording, view: QualityView) -> str:
    return words.say(
        "{difference} ({evidence}), {checks}, last at step {step}.",
        difference=_difference(words, view),
        evidence=_evidence(words, view),
        checks=_checks(words, view),
        step=words.number(view.last_step or 0),
    )


def _breach(words: Wording, view: QualityView) -> str:
    if view.drift.value is None:
        return words.join(
            (words.say("{metric} is not a finite number.", metric=view.metric), words.say("Roll back."))
        )
    sentence = words.say(
        "{difference} ({evidence}), {checks}.",
        difference=_difference(words, view),
        evidence=_evidence(words, view),
        checks=_checks(words, view),
    )
    return words.join((sentence, words.say("Roll back.")))


def _cannot_tell(words: Wording, view: QualityView) -> str:
    low, high = view.drift.low, view.drift.high
    if low is None or high is None:
        return words.say("There are too few checks so far.")
    return words.say(
        "{metric} is between {low} and {high} worse than the uncompressed baseline ({limit}), {checks}.",
        metric=view.metric,
        low=words.percent(low, 1),
        high=words.percent(high, 1),
        limit=words.say("limit {limit}", limit=words.percent(view.limit, 1)),
        checks=_checks(words, view),
    )


def _no_evidence(words: Wording, view: QualityView) -> str:
    cause = {
        "no_baseline": words.say("No baseline is chosen."),
        "too_few_checks": words.say("There are too few checks so far."),
        "no_common_steps": words.say("The baseline and this run were never checked at the same step."),
    }
    return words.join((cause.get(view.reason, ""), words.say("This does not mean quality is fine.")))


def _checks(words: Wording, view: QualityView) -> str:
    return words.say_many("{count} check", "{count} checks", view.num_checks)


def _difference(words: Wording, view: QualityView) -> str:
    drift = view.drift.value or 0.0
    if round(abs(drift), 3) == 0:
        return words.say("{metric} is level with the uncompressed baseline", metric=view.metric)
    amount = words.percent(abs(drift), 1)
    if drift < 0:
        return words.say(
            "{metric} is {drift} better than the uncompressed baseline", metric=view.metric, drift=amount
        )
    return words.say("{metric} is {drift} worse than the uncompressed baseline", metric=view.metric, drift=amount)


def _evidence(words: Wording, view: QualityView) -> str:
    low, high = view.drift.low, view.drift.high
    limit = words.say("limit {limit}", limit=words.percent(view.limit, 1))
    floor = "" if view.floor is None else words.say("no worse than {floor}", floor=words.significant(view.floor, 4))
    bounds = words.enumerate((limit, floor))
    if low is None or high is None:
        return bounds
    return words.say("{interval}; {bounds}", interval=words.percents(low, high, 1), bounds=bounds)
