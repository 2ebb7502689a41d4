"""Why the agent rolled back by itself, in the reader's language."""

import re
from collections.abc import Callable

from gradwire_server.pages.wording import Wording

# Bounded, so that whatever an agent writes can be shown as a number.
_COUNT = r"\d{1,15}"
_NUMBER = r"-?\d{1,15}(?:\.\d{1,15})?(?:e[+-]?\d{1,2})?"
_IN_A_ROW = rf"(?P<count>{_COUNT}) (?:steps|samples) in a row, up to step (?P<step>{_COUNT})"

Sentence = Callable[[Wording, dict[str, str]], str]


def guard_reason(words: Wording, text: str) -> str:
    """Return the agent's sentence in this language; one that is not known here stays as it came."""
    text = text.rstrip(".")
    for pattern, sentence in _SENTENCES:
        if found := pattern.fullmatch(text):
            return sentence(words, {name: _shown(words, value) for name, value in found.groupdict().items()})
    return text


def _shown(words: Wording, value: str) -> str:
    return words.number(int(value)) if value.isdecimal() else words.significant(float(value), 4)


def _loss(words: Wording, values: dict[str, str]) -> str:
    return words.say("the loss was not finite for {count} steps in a row, up to step {step}", **values)


def _gradient(words: Wording, values: dict[str, str]) -> str:
    return words.say("the averaged gradient was not finite for {count} steps in a row, up to step {step}", **values)


def _spike(words: Wording, values: dict[str, str]) -> str:
    return words.say(
        "the loss was above {limit} for {count} steps in a row, up to step {step}; its median before was {median}",
        **values,
    )


def _match(words: Wording, values: dict[str, str]) -> str:
    return words.say(
        "gradient match was below half of its median since the switch, {median}, "
        "in {count} samples in a row, up to step {step}",
        **values,
    )


# As the agent's rules say it; a test lets the real rules speak.
_SENTENCES: tuple[tuple[re.Pattern[str], Sentence], ...] = (
    (re.compile(rf"the loss was not finite for {_IN_A_ROW}"), _loss),
    (re.compile(rf"the averaged gradient was not finite for {_IN_A_ROW}"), _gradient),
    (
        re.compile(
            rf"the loss was above (?P<limit>{_NUMBER}) for {_IN_A_ROW}; its median before was (?P<median>{_NUMBER})"
        ),
        _spike,
    ),
    (
        re.compile(
            "the gradient match was below half of its median since the switch, "
            rf"(?P<median>{_NUMBER}), in {_IN_A_ROW}"
        ),
        _match,
    ),
)
