"""The run's history as table rows: changes with their answers, and events."""

from dataclasses import dataclass

from gradwire_server.pages.events import event_text
from gradwire_server.pages.sentences.change import state_line
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import DirectiveView, RunView


@dataclass(frozen=True)
class ChangeRow:
    """One change: who asked for what, how many confirmed, from which step, how long it took."""

    number: str
    time: str
    iso: str
    what: str
    who: str
    reason: str
    confirmed: str
    step: str
    seconds: str
    outcome: str


@dataclass(frozen=True)
class EventRow:
    """One event."""

    time: str
    iso: str
    step: str
    level: str
    text: str


def changes(words: Wording, view: RunView) -> list[ChangeRow]:
    """Return the run's changes, newest first."""
    return [_change(words, view, change) for change in view.changes]


def _change(words: Wording, view: RunView, change: DirectiveView) -> ChangeRow:
    who = {
        "local": words.say("on a node"),
        "guard": words.say("automatic rollback"),
    }.get(change.cause, change.author)
    what = words.say("Uncompressed") if change.codec == "none" else change.codec
    return ChangeRow(
        number=words.number(change.revision),
        time=words.clock(change.requested_at),
        iso=words.iso(change.requested_at),
        what=words.say("Rollback") if change.kind == "rollback" else what,
        who=who,
        reason=change.reason,
        confirmed=words.say(
            "{confirmed} of {all}",
            confirmed=words.number(change.num_ranks_confirmed),
            all=words.number(change.num_ranks or view.summary.world_size),
        ),
        step="" if change.step is None else words.number(change.step),
        seconds="" if change.seconds is None else words.seconds(change.seconds),
        outcome=state_line(words, view, change),
    )


def events(words: Wording, view: RunView) -> list[EventRow]:
    """Return the run's events, newest first."""
    return [
        EventRow(
            time=words.clock(event.at),
            iso=words.iso(event.at),
            step="" if event.step is None else words.number(event.step),
            level=event.level,
            text=event_text(words, event, view.summary.device),
        )
        for event in view.events
    ]
