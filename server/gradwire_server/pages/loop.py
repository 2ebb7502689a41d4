"""One step drawn as a closed loop: arcs as long as their share of the step."""

from dataclasses import dataclass

from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import LoopStage, RunView

# White space after an arc, per cent of the ring.
GAP = 0.7


@dataclass(frozen=True)
class Stage:
    """A line beside the ring and its arc; `start` and `length` are per cent of the ring."""

    name: str
    label: str
    milliseconds: str
    share: str
    is_largest: bool
    start: float
    length: float


def loop(words: Wording, view: RunView) -> list[Stage]:
    """Return the five stages in order, and what is left of the step last."""
    labels = {
        "compute": words.say("Compute"),
        "compress": words.say("Compress"),
        "send": words.say("Send"),
        "decompress": words.say("Decompress"),
        "update": words.say("Update"),
    }
    stages: list[Stage] = []
    start = 0.0
    for part in view.loop:
        stages.append(_stage(words, part, labels[part.name], start))
        start += 100 * (part.share or 0.0)
    if view.step_seconds.value and 0.005 < 1 - start / 100 < 1:
        rest = 1 - start / 100
        left = LoopStage(name="update", seconds=rest * view.step_seconds.value, share=rest)
        stages.append(_stage(words, left, words.say("Everything else"), start, name="rest"))
    return stages


def _stage(words: Wording, part: LoopStage, label: str, start: float, name: str = "") -> Stage:
    length = max(0.0, 100 * (part.share or 0.0) - GAP)
    return Stage(
        name=name or part.name,
        label=label,
        milliseconds="–" if part.seconds is None else words.milliseconds(part.seconds),
        share="–" if part.share is None else words.percent(part.share, 1 if part.share < 0.095 else 0),
        is_largest=part.is_largest,
        start=round(start + GAP / 2, 3),
        length=round(length, 3),
    )
