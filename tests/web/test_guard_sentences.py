"""Why the agent rolled back by itself: what its rules say, as pages say it."""

import math
import re

import pytest
from gradwire.steering.guard import Guard
from gradwire_server.pages.events import event_text
from gradwire_server.pages.sentences.change import rollback_line
from gradwire_server.pages.sentences.guard import guard_reason
from gradwire_server.runs.views import EventView
from made_view import chinese, directive_view, english, plain, run_view


def reasons() -> dict[str, str]:
    """Return what every real rule says."""
    said: list[str] = []
    guard = Guard(is_armed=lambda: True, on_breach=said.append)
    for step in range(1_000, 1_050):
        guard.observe_loss(step, 0.5 + 0.001 * (step % 3))
        guard.observe_match(step, 0.875)
    for step in range(1_050, 1_055):
        guard.observe_loss(step, 123_456.0)
        guard.observe_match(step, 0.1)
        guard.observe_gradient(step, is_finite=False)
    for step in range(1_055, 1_060):
        guard.observe_loss(step, math.nan)
    names = {"above": "spike", "match": "match", "averaged": "gradient", "loss was not finite": "loss"}
    return {next(name for mark, name in names.items() if mark in text): text for text in said}


REASONS = reasons()

IN_WORDS = {
    "spike": (
        "the loss was above 0.5511 for 5 steps in a row, up to step 1 054; its median before was 0.5010",
        "截至第 1054 步，损失连续 5 步高于 0.5511，此前的中位数为 0.5010",
    ),
    "match": (
        "gradient match was below half of its median since the switch, 0.8750, "
        "in 3 samples in a row, up to step 1 052",
        "截至第 1052 步，梯度还原度连续 3 次抽样低于切换以来中位数 0.8750 的一半",
    ),
    "gradient": (
        "the averaged gradient was not finite for 3 steps in a row, up to step 1 052",
        "截至第 1052 步，平均梯度连续 3 步为非有限值",
    ),
    "loss": (
        "the loss was not finite for 3 steps in a row, up to step 1 057",
        "截至第 1057 步，损失连续 3 步为非有限值",
    ),
}


@pytest.mark.parametrize("rule", IN_WORDS)
def test_every_rule_is_told_in_the_readers_language(rule: str) -> None:
    assert tuple(plain(guard_reason(words, REASONS[rule])) for words in (english(), chinese())) == IN_WORDS[rule]


def test_the_rollback_and_both_events_hold_no_english_on_the_chinese_page() -> None:
    reason = REASONS["spike"]
    change = directive_view(
        kind="rollback", codec="none", state="applied", cause="guard", step=1_060, reason=reason
    )
    data = {"num_ranks": 8, "codec": "none", "is_rollback": True, "cause": "guard", "reason": reason}
    lines = [rollback_line(chinese(), run_view(last_change=change))]
    for kind in ("switched", "would_roll_back"):
        event = EventView(number=1, at=0.0, step=1_060, kind=kind, level="warning", message="English", data=data)
        lines.append(event_text(chinese(), event, "cuda"))
    assert all("损失连续" in line for line in lines)
    assert not [line for line in lines if re.search("[A-Za-z]", line)]


@pytest.mark.parametrize(
    "text",
    [
        "a rule of a later version",
        "the loss was above inf for 5 steps in a row, up to step 9; its median before was 1",
        f"the loss was not finite for {'9' * 400} steps in a row, up to step 1",
        "",
    ],
)
def test_what_is_not_known_stays_as_the_agent_wrote_it(text: str) -> None:
    assert guard_reason(chinese(), text) == text
