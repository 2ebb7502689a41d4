"""Is compression worth it, and is it paying off?"""

from dataclasses import dataclass

from gradwire_server.pages.sentences.saving import because
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import Measure, VerdictView
from gradwire_server.verdict import reasons


@dataclass(frozen=True)
class Verdict:
    """The sentence in two parts: the answer, and what it rests on."""

    answer: str
    evidence: str


def verdict(words: Wording, view: VerdictView) -> Verdict:
    """Return the verdict with its number, its interval and the steps it was measured on."""
    return {
        "worth_it": _worth_it,
        "not_worth_it": _not_worth_it,
        "cannot_say": _cannot_say,
        "not_measured": _not_measured,
        "paying_off": _paying_off,
        "not_paying_off": _not_paying_off,
        "cannot_say_pays": _cannot_say_pays,
    }[view.kind](words, view)


def short_verdict(words: Wording, view: VerdictView) -> str:
    """Return the answer alone, for the list of runs."""
    return {
        "worth_it": words.say("Worth it"),
        "not_worth_it": words.say("Not worth it"),
        "cannot_say": words.say("Cannot say yet"),
        "not_measured": words.say("Not measured"),
        "paying_off": words.say("Paying off"),
        "not_paying_off": words.say("Not paying off"),
        "cannot_say_pays": words.say("Cannot say yet"),
    }[view.kind]


def _worth_it(words: Wording, view: VerdictView) -> Verdict:
    share, evidence = _share(words, view)
    spent = words.say(
        "{share} of every step is spent waiting for gradients to travel ({evidence}).",
        share=share,
        evidence=evidence,
    )
    return Verdict(words.say("Worth it."), words.join((spent, _gain(words, view))))


def _gain(words: Wording, view: VerdictView) -> str:
    speedup = view.expected_speedup
    if speedup is None:
        return ""
    values = {"codec": words.codec(view.suggested_codec), "speedup": words.times(speedup, 1)}
    before, after = view.remaining_seconds, view.remaining_seconds_expected
    times = words.durations(after, before) if before is not None and after is not None else None
    if times is None:
        less = words.percent(1 - 1 / speedup)
        return words.say("{codec} should make training {speedup} as fast, {less} less time.", less=less, **values)
    return words.say(
        "{codec} should make training {speedup} as fast: done in {expected} instead of {present_number}.",
        expected=times[0],
        present=times[1],
        present_number=times[2],
        **values,
    )


def _not_worth_it(words: Wording, view: VerdictView) -> Verdict:
    if view.reason == reasons.ONE_RANK:
        return Verdict(words.say("Not worth it."), words.say("A single process sends no gradients."))
    share, evidence = _share(words, view)
    spent = words.say(
        "Only {share} of every step is spent waiting for gradients ({evidence}), below the {line} line.",
        share=share,
        evidence=evidence,
        line=words.percent(view.line),
    )
    return Verdict(words.say("Not worth it."), words.join((spent, _other_cost(words, view))))


def _other_cost(words: Wording, view: VerdictView) -> str:
    if view.largest_other_share is None:
        return ""
    share = words.percent(view.largest_other_share)
    return {
        "data_wait": words.say("Data loading takes {share}: start there.", share=share),
        "forward": words.say("The forward pass takes {share}: start there.", share=share),
        "backward": words.say("The backward pass takes {share}: start there.", share=share),
        "optimizer": words.say("The optimizer takes {share}: start there.", share=share),
        "straggler_wait": words.say("Waiting for the slowest node takes {share}: start there.", share=share),
    }.get(view.largest_other, words.say("Work outside the model takes {share}: start there.", share=share))


def _cannot_say(words: Wording, view: VerdictView) -> Verdict:
    share = view.share
    if view.num_steps == 0:
        spent = words.say("No step has been measured so far.")
    elif share.low is not None and share.high is not None and share.low <= view.line <= share.high:
        spent = words.say(
            "Waiting for gradients takes {interval} of a step, on both sides of the {line} line.",
            interval=words.percents(share.low, share.high, _digits(view, share.low, share.high)),
            line=words.percent(view.line),
        )
    else:
        spent = words.say_many(
            "Only {count} uncompressed step was measured so far.",
            "Only {count} uncompressed steps were measured so far.",
            view.num_steps,
        )
    return Verdict(words.say("Cannot say yet."), words.join((spent, _more(words, view))))


def _more(words: Wording, view: VerdictView) -> str:
    if view.more_steps is None:
        return ""
    if view.more_seconds is None:
        return words.say_many(
            "About {count} more uncompressed step will tell.",
            "About {count} more uncompressed steps will tell.",
            view.more_steps,
        )
    return words.say_many(
        "About {count} more uncompressed step ({duration}) will tell.",
        "About {count} more uncompressed steps ({duration}) will tell.",
        view.more_steps,
        duration=words.duration(view.more_seconds),
    )


def _not_measured(words: Wording, view: VerdictView) -> Verdict:
    reason = view.reason or view.share.reason
    if not reason:
        return Verdict(words.say("Cannot say yet."), words.say("No step has been measured so far."))
    return Verdict(
        words.say("Cannot say:"),
        words.say("transfer time was not measured, because {reason}.", reason=words.reason(reason).rstrip(".。")),
    )


def _paying_off(words: Wording, view: VerdictView) -> Verdict:
    speedup = view.speedup
    value = speedup.value or 1.0
    values = {
        "codec": words.codec(view.codec),
        "speedup": words.times(value),
        "interval": _speedup_interval(words, speedup),
        "less": words.percent(1 - 1 / value),
    }
    evidence = words.say_many(
        "{codec} runs at {speedup} the uncompressed speed{interval}, {less} less time, "
        "measured against {count} uncompressed step of this run.",
        "{codec} runs at {speedup} the uncompressed speed{interval}, {less} less time, "
        "measured against {count} uncompressed steps of this run.",
        view.num_uncompressed_steps,
        **values,
    )
    if view.num_checks:
        evidence = words.say_many(
            "{codec} runs at {speedup} the uncompressed speed{interval}, {less} less time, "
            "measured in {count} uncompressed check of this run.",
            "{codec} runs at {speedup} the uncompressed speed{interval}, {less} less time, "
            "measured in {count} uncompressed checks of this run.",
            view.num_checks,
            **values,
        )
    return Verdict(words.say("Paying off."), evidence)


def _speedup_interval(words: Wording, speedup: Measure) -> str:
    if speedup.low is None or speedup.high is None:
        return ""
    return words.say(" ({interval})", interval=words.span(speedup.low, speedup.high, 2))


def _not_paying_off(words: Wording, view: VerdictView) -> Verdict:
    speedup = view.speedup.value or 1.0
    longer = 1 / speedup - 1
    evidence = words.say(
        "With {codec} every step takes {longer} longer than without. Roll back.",
        codec=words.codec(view.codec),
        longer=words.percent(longer, 1 if longer < 0.0095 else 0),
    )
    return Verdict(words.say("Not paying off."), evidence)


def _cannot_say_pays(words: Wording, view: VerdictView) -> Verdict:
    if view.more_steps is not None and view.more_seconds is not None:
        evidence = words.say_many(
            "About {count} more step ({duration}) will tell.",
            "About {count} more steps ({duration}) will tell.",
            view.more_steps,
            duration=words.duration(view.more_seconds),
        )
    else:
        evidence = because(words, view.reason or view.speedup.reason)
    return Verdict(words.say("Cannot say yet whether it pays."), evidence)


def _share(words: Wording, view: VerdictView) -> tuple[str, str]:
    """Return the share, and in parentheses' words its interval and steps."""
    share = view.share
    digits = _digits(view, share.low, share.value, share.high)
    interval = "" if share.low is None or share.high is None else words.percents(share.low, share.high, digits)
    return words.percent(share.value or 0.0, digits), words.enumerate((interval, steps(words, view)))


def steps(words: Wording, view: VerdictView) -> str:
    """Return the range of steps that a verdict rests on."""
    if view.first_step is None or view.last_step is None:
        return words.say_many("{count} step", "{count} steps", view.num_steps)
    return words.say("steps {first}–{last}", first=words.number(view.first_step), last=words.number(view.last_step))


def _digits(view: VerdictView, *values: float | None) -> int:
    """Return a digit after the point only where whole per cent would hide the interval or the side of the line."""
    known = [value for value in values if value is not None]
    touches_line = any(round(100 * value) == round(100 * view.line) and value != view.line for value in known)
    low, high = min(known, default=0.0), max(known, default=1.0)
    is_narrow = low != high and round(100 * low) == round(100 * high)
    return 1 if touches_line or is_narrow or low < 0.01 else 0
