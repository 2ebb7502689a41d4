"""What samples of gradients show, for the engineer."""

from dataclasses import dataclass

from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import RunView


@dataclass(frozen=True)
class Tried:
    """A line of the table of what every codec would do."""

    codec: str
    match: str
    error: str
    encode: str
    decode: str
    memory: str
    is_present: bool


def match(words: Wording, view: RunView) -> tuple[str, str]:
    """Return the gradient match, and the tensor that it is worst for; dashes before a sample."""
    found = view.samples.match
    if found is None:
        is_on = view.plan.codec != "none"
        return "–", words.say("Not sampled yet.") if is_on else words.say("Nothing is compressed.")
    note = words.say(
        "step {step}, relative error {error}; lowest: {tensor} at {worst}",
        step=words.number(found.step),
        error=words.percent(found.relative_error, 1),
        tensor=found.worst_parameter,
        worst=words.number(found.worst_cosine, 3),
    )
    return words.number(found.cosine, 4), note


def copies(words: Wording, view: RunView) -> tuple[str, str]:
    """Return whether all ranks hold the same parameters, and since when that is known."""
    found = view.samples.replicas
    if found is None:
        return "–", words.say("Not compared yet.")
    state = words.say("equal") if found.are_equal else words.say("different")
    return state, words.say("compared bit for bit at step {step}", step=words.number(found.step))


def tried(words: Wording, view: RunView) -> list[Tried]:
    """Return what every codec would make of this model, the finest first."""
    memory = {choice.name: choice.extra_memory_bytes for choice in view.codecs}

    def size(codec: str) -> str:
        known = memory.get(codec)
        return "–" if known is None else words.bytes(known)

    return [
        Tried(
            codec=one.codec,
            match=words.number(one.cosine, 4),
            error=words.percent(one.relative_error, 1),
            encode=words.milliseconds(one.encode_seconds),
            decode=words.milliseconds(one.decode_seconds),
            memory=size(one.codec),
            is_present=one.codec == view.plan.codec,
        )
        for one in sorted(view.samples.rehearsal, key=lambda one: one.relative_error)
    ]


def concentration(words: Wording, view: RunView) -> str:
    """Return how much of the gradients the largest elements hold; "" before it is known."""
    if not view.samples.rehearsal:
        return ""
    small, middle, large = (words.percent(share) for share in view.samples.rehearsal[-1].norm_shares)
    return words.say(
        "The largest 1 % of the values hold {small} of the gradient norm, 5 % hold {middle}, 25 % hold {large}.",
        small=small,
        middle=middle,
        large=large,
    )
