"""Time left and hours saved: the figures beside the verdict."""

from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import Measure, RunView


def finish_date(words: Wording, view: RunView) -> str:
    """Return the day on which the run is done at its present speed; a dash when that is unknown."""
    status, finish = view.summary.status, view.finish_at
    if status.name in ("finished", "failed", "interrupted"):
        return words.moment(status.since)
    if finish.value is None:
        return "–"
    is_soon = finish.value - words.now < 2 * 86400
    return words.moment(finish.value) if is_soon else words.date(finish.value)


def finish_note(words: Wording, view: RunView) -> str:
    """Return what the finish date rests on, or why there is none."""
    status, finish = view.summary.status.name, view.finish_at
    if status in ("finished", "failed", "interrupted"):
        return words.say("The run has ended.")
    if finish.value is None:
        return because(words, finish.reason)
    return words.say(
        "In {duration} at the present speed.", duration=words.duration(max(0.0, finish.value - words.now))
    )


def hours(words: Wording, measure: Measure, device: str) -> str:
    """Return GPU-hours, or process-hours on CPU; a dash when unknown."""
    if measure.value is None:
        return "–"
    if device == "cpu":
        return words.say("{hours} process-hours", hours=_amount(words, measure.value))
    return words.say("{hours} GPU-hours", hours=_amount(words, measure.value))


def _amount(words: Wording, value: float) -> str:
    if abs(value) >= 100:
        return words.number(value)
    return words.number(value, 1 if abs(value) >= 0.1 or value == 0 else 3)


def saving_note(words: Wording, view: RunView) -> str:
    """Return what the large figure rests on and the two smaller ones, or why the large one is missing."""
    saving, device = view.saving, view.summary.device
    parts = []
    if saving.num_checks and saving.saved_hours.value is not None:
        parts.append(
            words.say_many(
                "measured in {count} uncompressed check",
                "measured in {count} uncompressed checks",
                saving.num_checks,
            )
        )
    if saving.will_save_hours.value is not None:
        parts.append(words.say("will save {hours}", hours=hours(words, saving.will_save_hours, device)))
    if saving.could_save_hours.value is not None:
        parts.append(words.say("could save {hours}", hours=hours(words, saving.could_save_hours, device)))
    note = words.enumerate(parts)
    return note or because(words, saving.saved_hours.reason)


def because(words: Wording, reason: str) -> str:
    """Return why a figure is missing, as a sentence; "" without a reason."""
    if not reason:
        return ""
    return words.say("Not known: {reason}.", reason=words.reason(reason).rstrip(".。"))
