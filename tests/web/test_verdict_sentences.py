"""The verdict in both languages, sentence by sentence."""

import pytest
from gradwire_server.pages.sentences.verdict import short_verdict, verdict
from gradwire_server.runs.views import Measure, VerdictView
from gradwire_server.verdict import reasons
from made_view import chinese, english, measure, paying_view, plain, verdict_view


def both(view: VerdictView) -> tuple[str, str]:
    in_english, in_chinese = verdict(english(), view), verdict(chinese(), view)
    return plain(f"{in_english.answer} {in_english.evidence}"), plain(in_chinese.answer + in_chinese.evidence)


def test_worth_it_names_share_interval_steps_and_days() -> None:
    assert both(verdict_view()) == (
        "Worth it. 43 % of every step is spent waiting for gradients to travel (41–45 %, steps 200–1 200). "
        "int8 should make training 1.3× as fast: done in 9 days instead of 12.",
        "值得做。每一步有 43% 的时间在等待梯度传输（41%–45%，第 200–1200 步）。"
        "开启 int8 后速度预计达到 1.3 倍：9 天完成，而不是 12 天。",
    )


def test_worth_it_says_less_time_when_the_total_is_unknown() -> None:
    text, chinese_text = both(verdict_view(remaining_seconds=None))
    assert text.endswith("int8 should make training 1.3× as fast, 23 % less time.")
    assert chinese_text.endswith("开启 int8 后速度预计达到 1.3 倍，用时减少 23%。")


def test_worth_it_says_less_time_when_both_times_look_the_same() -> None:
    text, _ = both(verdict_view(remaining_seconds=0.9, remaining_seconds_expected=0.8))
    assert text.endswith("1.3× as fast, 23 % less time.")


def test_worth_it_promises_nothing_without_an_expectation() -> None:
    text, _ = both(verdict_view(expected_speedup=None))
    assert text.endswith("(41–45 %, steps 200–1 200).")


def test_not_worth_it_names_the_line_and_the_largest_other_cost() -> None:
    view = verdict_view(
        kind="not_worth_it",
        share=measure(0.08, 0.07, 0.09),
        largest_other="data_wait",
        largest_other_share=0.31,
    )
    assert both(view) == (
        "Not worth it. Only 8 % of every step is spent waiting for gradients (7–9 %, steps 200–1 200), "
        "below the 20 % line. Data loading takes 31 %: start there.",
        "不值得做。每一步只有 8% 的时间在等待梯度传输（7%–9%，第 200–1200 步），低于 20% 的门槛。"
        "数据读取占 31%，建议先优化它。",
    )


@pytest.mark.parametrize("other", ["forward", "backward", "optimizer", "straggler_wait", "other"])
def test_not_worth_it_names_every_kind_of_other_cost_in_its_own_words(other: str) -> None:
    view = verdict_view(kind="not_worth_it", largest_other=other, largest_other_share=0.31)
    data_wait = verdict_view(kind="not_worth_it", largest_other="data_wait", largest_other_share=0.31)
    for text, other_text in zip(both(view), both(data_wait), strict=True):
        assert "31" in text
        assert text != other_text


def test_not_worth_it_of_a_single_process_says_that_it_sends_nothing() -> None:
    view = verdict_view(kind="not_worth_it", share=measure(0.0, 0.0, 0.0), reason=reasons.ONE_RANK)
    assert both(view) == (
        "Not worth it. A single process sends no gradients.",
        "不值得做。单个进程不传输梯度。",
    )


def test_a_share_just_below_the_line_is_not_rounded_onto_it() -> None:
    view = verdict_view(kind="not_worth_it", share=measure(0.1962, 0.194, 0.199), largest_other_share=None)
    assert "Only 19.6 %" in both(view)[0]
    assert "(19.4–19.9 %" in both(view)[0]


def test_cannot_say_yet_names_both_sides_and_how_many_steps_will_tell() -> None:
    view = verdict_view(
        kind="cannot_say", share=measure(0.205, 0.17, 0.24), more_steps=600, more_seconds=1200.0, num_steps=400
    )
    assert both(view) == (
        "Cannot say yet. Waiting for gradients takes 17–24 % of a step, on both sides of the 20 % line. "
        "About 600 more uncompressed steps (20 minutes) will tell.",
        "暂时无法判断。等待梯度传输占每步的 17%–24%，跨在 20% 门槛两侧。"
        "再跑约 600 个无压缩步（约 20 分钟）即可判断。",
    )


def test_cannot_say_yet_of_few_steps_counts_them() -> None:
    view = verdict_view(kind="cannot_say", share=measure(0.43), num_steps=1, more_steps=20)
    assert both(view) == (
        "Cannot say yet. Only 1 uncompressed step was measured so far. About 20 more uncompressed steps will tell.",
        "暂时无法判断。目前只测到 1 个无压缩步。再跑约 20 个无压缩步即可判断。",
    )


def test_cannot_say_yet_of_no_steps_says_so() -> None:
    view = VerdictView(kind="cannot_say", share=Measure(reason=reasons.NO_STEPS), reason=reasons.NO_STEPS)
    assert both(view) == (
        "Cannot say yet. No step has been measured so far.",
        "暂时无法判断。目前还没有测到任何一步。",
    )


def test_not_measured_names_the_reason() -> None:
    view = verdict_view(kind="not_measured", share=Measure(reason="x"), reason=reasons.NO_TRANSFER)
    assert both(view) == (
        "Cannot say: transfer time was not measured, because the agent reported no transfer times.",
        "无法判断：未测到传输时间，原因是训练端没有上报传输时间。",
    )


def test_not_measured_passes_the_trainings_own_reason_on_and_braces_in_it_are_text() -> None:
    view = verdict_view(kind="not_measured", share=Measure(reason="x"), reason="the {hook} of FSDP is unknown.")
    text, chinese_text = both(view)
    assert text.endswith("because the {hook} of FSDP is unknown.")
    assert chinese_text.endswith("原因是the {hook} of FSDP is unknown。")


def test_paying_off_names_speed_interval_time_and_what_it_is_measured_against() -> None:
    assert both(paying_view()) == (
        "Paying off. int8 runs at 1.31× the uncompressed speed (1.27–1.35), 24 % less time, "
        "measured against 60 uncompressed steps of this run.",
        "压缩见效。int8 的速度是无压缩的 1.31 倍（1.27–1.35），用时减少 24%，与本次训练的 60 个无压缩步实测对比。",
    )


def test_not_paying_off_says_how_much_longer_and_to_roll_back() -> None:
    view = paying_view(kind="not_paying_off", speedup=measure(1 / 1.04, 0.94, 0.98))
    assert both(view) == (
        "Not paying off. With int8 every step takes 4 % longer than without. Roll back.",
        "压缩未见效。开启 int8 后每步比无压缩慢 4%，建议回滚。",
    )


def test_not_paying_off_by_less_than_a_per_cent_is_not_called_zero() -> None:
    view = paying_view(kind="not_paying_off", speedup=measure(1 / 1.004, 0.99, 0.999))
    assert "takes 0.4 % longer" in both(view)[0]


def test_cannot_say_whether_it_pays_names_the_steps_to_come() -> None:
    view = paying_view(kind="cannot_say_pays", more_steps=300, more_seconds=720.0)
    assert both(view) == (
        "Cannot say yet whether it pays. About 300 more steps (12 minutes) will tell.",
        "暂时无法判断压缩是否见效。再跑约 300 步（约 12 分钟）即可判断。",
    )


def test_cannot_say_whether_it_pays_names_the_reason() -> None:
    view = paying_view(kind="cannot_say_pays", reason=reasons.NO_UNCOMPRESSED_STEPS)
    assert both(view)[0] == (
        "Cannot say yet whether it pays. "
        "Not known: there are too few uncompressed steps since this start to compare with."
    )


def test_every_verdict_has_a_short_form_in_both_languages() -> None:
    kinds = VerdictView.__annotations__["kind"].__args__
    for words in (english(), chinese()):
        assert all(short_verdict(words, verdict_view(kind=kind)) for kind in kinds)
