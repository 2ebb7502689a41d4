"""Lines of a run's history in words; what a page has no words for stands as the service or the agent wrote it."""

from collections.abc import Callable, Mapping
from typing import Any

from gradwire_server.pages.sentences.guard import guard_reason
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import EventView

Data = Mapping[str, Any]


def event_text(words: Wording, event: EventView, device: str) -> str:
    """Return one line of the history.

    Args:
        words: Of the reader.
        event: The line; its data fill the sentence in.
        device: "cpu" or "cuda": what ranks are called.
    """
    sentence = SENTENCES.get(event.kind)
    if sentence is None:
        return event.message
    try:
        return sentence(words, event.data, device)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Data of an event are any scalars: an older or newer program, or a broken one, wrote others than ours.
        return event.message


def _change(words: Wording, data: Data) -> str:
    return words.number(data["revision"])


def _started(words: Wording, data: Data, device: str) -> str:
    ranks = words.ranks(data["world_size"], device)
    if data["number"] == 1:
        return words.say("Training started on {ranks}.", ranks=ranks)
    return words.say("Restart {number}, on {ranks}.", number=words.number(data["number"]), ranks=ranks)


def _ended(words: Wording, data: Data, device: str) -> str:
    text = {
        "finished": words.say("Training finished."),
        "failed": words.say("Training failed."),
        "interrupted": words.say("Training was interrupted."),
    }[data["status"]]
    return words.join((text, data["exception"]))


def _requested(words: Wording, data: Data, device: str) -> str:
    values = {"who": data["author"], "number": _change(words, data), "codec": words.codec(data["codec"])}
    if data["kind"] == "rollback":
        return words.say("{who} asked for a rollback (change {number}).", **values)
    return words.say("{who} asked for {codec} (change {number}).", **values)


def _delivered(words: Wording, data: Data, device: str) -> str:
    return words.say("Change {number} reached the training.", number=_change(words, data))


def _switched(words: Wording, data: Data, device: str) -> str:
    values = {"ranks": words.ranks(data["num_ranks"], device), "codec": words.codec(data["codec"])}
    if data["is_rollback"]:
        text = words.say("All {ranks} rolled back to uncompressed.", **values)
    else:
        text = words.say("All {ranks} switched to {codec}.", **values)
    cause = {"local": words.say("Asked for on a node."), "guard": words.say("Done automatically.")}
    given = guard_reason(words, data["reason"]) if data["cause"] == "guard" else data["reason"]
    reason = words.say("Reason: {reason}.", reason=given.rstrip(".。")) if given else ""
    return words.join((text, cause.get(data["cause"], ""), reason))


def _refused(words: Wording, data: Data, device: str) -> str:
    text = words.say("Change {number} was refused.", number=_change(words, data))
    return words.join((text, data["host"] and f"{data['host']}:", data["reason"]))


def _superseded(words: Wording, data: Data, device: str) -> str:
    return words.say("Change {number} was replaced by a later one.", number=_change(words, data))


def _expired(words: Wording, data: Data, device: str) -> str:
    return words.say("Change {number} expired before the training answered.", number=_change(words, data))


def _reason(words: Wording, data: Data, device: str) -> str:
    return words.say(
        "{who} gave a reason for change {number}: {reason}",
        who=data["author"],
        number=_change(words, data),
        reason=data["reason"],
    )


def _baseline(words: Wording, data: Data, device: str) -> str:
    if data["name"] is None:
        return words.say("{who} took the baseline back.", who=data["author"])
    return words.say("{who} chose {name} as the baseline.", who=data["author"], name=data["name"])


def _would_roll_back(words: Wording, data: Data, device: str) -> str:
    return words.say(
        "Automatic rollback would have acted, and only reports. Reason: {reason}.",
        reason=guard_reason(words, data["reason"]),
    )


def _replicas_differ(words: Wording, data: Data, device: str) -> str:
    ranks = ", ".join(words.rank(int(rank), device) for rank in data["ranks"].split(","))
    if (left := data["num_ranks"] - len(data["ranks"].split(","))) > 0:
        ranks = words.say("{names} and {count} more", names=ranks, count=words.number(left))
    return words.say(
        "Copies of the model differ in {parameters}; the first on {ranks}.",
        parameters=data["parameters"],
        ranks=ranks,
    )


def _loss_nonfinite(words: Wording, data: Data, device: str) -> str:
    ranks = ", ".join(words.rank(int(rank), device) for rank in data["ranks"].split(","))
    return words.say("The loss is not finite on {ranks}.", ranks=ranks)


def _replicas_agree(words: Wording, data: Data, device: str) -> str:
    return words.say("All copies of the model are equal again.")


def _spared(words: Wording, data: Data, device: str) -> str:
    return words.say(
        "{spared} of {count} buckets travel uncompressed, which should be faster: {exact}, "
        "and {lossy} with {codec}.",
        spared=words.number(data["num_spared"]),
        count=words.number(data["num_buckets"]),
        exact=words.milliseconds(data["exact_seconds"]),
        lossy=words.milliseconds(data["lossy_seconds"]),
        codec=words.codec(data["codec"]),
    )


def _clock_skew(words: Wording, data: Data, device: str) -> str:
    values = {
        "rank": words.rank(data["rank"], device),
        "first": words.rank(0, device),
        "time": words.duration(abs(data["seconds"])),
    }
    if data["seconds"] < 0:
        return words.say("The clock of {rank} is {time} behind that of {first}.", **values)
    return words.say("The clock of {rank} is {time} ahead of that of {first}.", **values)


def _clock_jumped(words: Wording, data: Data, device: str) -> str:
    values = {"rank": words.rank(data["rank"], device), "time": words.duration(abs(data["seconds"]))}
    if data["seconds"] < 0:
        return words.say("The clock of {rank} was set back by {time}.", **values)
    return words.say("The clock of {rank} was set forward by {time}.", **values)


def _traced(words: Wording, data: Data, device: str) -> str:
    if data["stride"] == 1:
        return words.say("Every step is traced again.")
    return words.say(
        "One in {count} steps is traced, so that measuring stays within its budget.",
        count=words.number(data["stride"]),
    )


SENTENCES: dict[str, Callable[[Wording, Data, str], str]] = {
    "attempt_started": _started,
    "attempt_ended": _ended,
    "requested": _requested,
    "delivered": _delivered,
    "switched": _switched,
    "refused": _refused,
    "superseded": _superseded,
    "expired": _expired,
    "reason": _reason,
    "baseline": _baseline,
    "would_roll_back": _would_roll_back,
    "loss_nonfinite": _loss_nonfinite,
    "replicas_differ": _replicas_differ,
    "replicas_agree": _replicas_agree,
    "spared": _spared,
    "clock_skew": _clock_skew,
    "clock_jumped": _clock_jumped,
    "traced": _traced,
}
