"""What to do now: one sentence and one button."""

from dataclasses import dataclass
from typing import Literal

from gradwire_server.pages.sentences.change import ENDED_STATES, OPEN_STATES
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import RunView, StragglerView


@dataclass(frozen=True)
class NextStep:
    """One sentence, and the button that does it: turns a codec on, rolls back, or leads to a part of the page."""

    sentence: str
    label: str
    action: Literal["turn_on", "rollback", "link"]
    # Of "turn_on".
    codec: str = ""
    # Of "link": a part of the run's page.
    target: str = ""


def next_step(words: Wording, view: RunView) -> NextStep:
    """Return the most useful thing to do; what endangers the model comes first."""
    return _trouble(words, view) or _pending(words, view) or _quality(words, view) or _speed(words, view)


def _trouble(words: Wording, view: RunView) -> NextStep | None:
    status = view.summary.status.name
    if status in ENDED_STATES:
        return _see(words.say("The run has ended. Its charts stay here."), words.say("See the charts"), "charts")
    if status in ("silent", "lost"):
        sentence = words.say("Nothing was heard from the training lately. Look at its log and at the last events.")
        return _see(sentence, words.say("See the events"), "history")
    if view.quality.state == "breach" and view.plan.codec != "none":
        sentence = words.say(
            "Quality is beyond its limit with compression on. Go back first, then look for the cause."
        )
        return NextStep(sentence, words.say("Roll back to uncompressed"), "rollback")
    return None


def _pending(words: Wording, view: RunView) -> NextStep | None:
    change = view.last_change
    if change is None or change.state not in OPEN_STATES:
        return None
    return _see(words.say("A change is on its way. Wait for the answer."), words.say("See the changes"), "history")


def _quality(words: Wording, view: RunView) -> NextStep | None:
    is_compressed = view.plan.codec != "none"
    if is_compressed and view.quality.reason == "no_baseline" and view.baseline_choices:
        sentence = words.say(
            "Nobody can say yet what compression does to quality. Choose an uncompressed baseline."
        )
        return _see(sentence, words.say("Choose a baseline"), "quality")
    return None


def _speed(words: Wording, view: RunView) -> NextStep:
    verdict = view.summary.verdict
    if not view.is_steered:
        sentence = words.say("This run is measured but cannot be steered from here. The events say why.")
        return _see(sentence, words.say("See the events"), "history")
    slow = view.waiting.straggler
    # What all wait for a slow rank, no codec gives back.
    costs_more = slow is not None and slow.others_wait_share > (verdict.share.value or 0.0)
    if verdict.kind == "worth_it" and verdict.suggested_codec and not costs_more:
        codec = verdict.suggested_codec
        sentence = words.say("Try {codec}: it can be taken back with one click at any time.", codec=codec)
        return NextStep(sentence, words.say("Turn on {codec}", codec=codec), "turn_on", codec=codec)
    if slow is not None and verdict.kind in ("worth_it", "not_worth_it", "cannot_say", "not_measured"):
        sentence = words.say(
            "Look at {who}: the others wait for it during {share} of every step.",
            who=straggler(words, slow, view.summary.device),
            share=words.percent(slow.others_wait_share),
        )
        return _see(sentence, words.say("See where a step goes"), "charts")
    if verdict.kind == "not_worth_it":
        return _see(
            words.say("Leave compression off and look at where the time goes."),
            words.say("See where a step goes"),
            "charts",
        )
    if verdict.kind == "not_paying_off":
        sentence = words.say("Compression makes this run slower. Go back.")
        return NextStep(sentence, words.say("Roll back to uncompressed"), "rollback")
    if verdict.kind == "paying_off":
        return _see(
            words.say("Keep {codec} on, and keep an eye on quality.", codec=verdict.codec),
            words.say("See the charts"),
            "charts",
        )
    return _see(
        words.say("Let it run: the answer comes by itself as steps are measured."),
        words.say("See the charts"),
        "charts",
    )


def straggler(words: Wording, view: StragglerView, device: str) -> str:
    """Return the rank that the others wait for, with its host."""
    rank = words.rank(view.rank, device)
    return words.say("{rank} on {host}", rank=rank, host=view.host) if view.host else rank


def _see(sentence: str, label: str, target: str) -> NextStep:
    return NextStep(sentence, label, "link", target=target)
