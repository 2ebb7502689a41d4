"""Every state of a rollback and of a change, in both languages."""

import pytest
from gradwire_protocol.records import Refusal
from gradwire_server.pages.sentences.change import last_change, question, refusal, rollback_line, state_line
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import CodecChoice, RunView, StatusView
from gradwire_server.verdict import reasons
from made_view import NOW, chinese, compressed_view, directive_view, english, plain, run_view
from msgspec import structs

PROMISE = "One click, all GPUs at the same step. Training goes on; weights are not changed back."


def line(view: RunView) -> tuple[str, str]:
    return plain(rollback_line(english(), view)), plain(rollback_line(chinese(), view))


def test_line_promises_what_the_button_does_while_compressed() -> None:
    assert line(compressed_view()) == (
        PROMISE,
        "一键生效，全部 GPU 在同一步切换。训练不中断，模型权重不会被还原。",
    )


def test_line_speaks_of_processes_on_cpu() -> None:
    view = compressed_view(summary={"device": "cpu"})
    assert line(view)[0].startswith("One click, all processes at the same step.")
    assert line(view)[1].startswith("一键生效，全部进程在同一步切换。")


def test_requested_names_author_and_time() -> None:
    view = compressed_view(last_change=directive_view(state="requested", requested_at=NOW))
    assert line(view) == (
        "Rollback requested by Ada at 14:02:07 UTC. Waiting for the training to answer.",
        "Ada 于 14:02:07 UTC 发起回滚，等待训练端响应。",
    )


def test_applying_counts_confirmations() -> None:
    change = directive_view(state="delivered", num_ranks_confirmed=5)
    assert line(compressed_view(last_change=change)) == ("5 of 8 GPUs have confirmed.", "8 张卡中已有 5 张确认。")
    on_cpu = compressed_view(last_change=change, summary={"device": "cpu"})
    assert line(on_cpu) == ("5 of 8 processes have confirmed.", "8 个进程中已有 5 个确认。")


def test_done_names_ranks_step_and_seconds() -> None:
    assert line(run_view(last_change=directive_view())) == (
        "Uncompressed on all 8 GPUs since step 41 207, 0.9 s after the click.",
        "自第 41207 步起，8 张卡全部为无压缩模式，距点击 0.9 秒。",
    )


def test_done_speaks_of_processes_on_cpu() -> None:
    change = directive_view(num_ranks=2, num_ranks_confirmed=2)
    view = run_view(last_change=change, summary={"device": "cpu", "world_size": 2})
    assert line(view)[0].startswith("Uncompressed on all 2 processes since step 41 207")
    assert line(view)[1].startswith("自第 41207 步起，2 个进程全部为无压缩模式")


def test_refused_names_who_and_why_and_that_compression_is_still_on() -> None:
    refusals = (Refusal(rank=3, host="node-02", reason="out of memory."),)
    view = compressed_view(last_change=directive_view(state="rejected", refusals=refusals, step=None))
    assert line(view) == (
        "Not applied. GPU 3 on node-02 refused: out of memory. Compression is still on everywhere.",
        "未生效。node-02 的 3 号卡拒绝：out of memory。压缩仍在运行。",
    )


def test_no_answer_names_the_way_that_needs_no_server() -> None:
    view = compressed_view(last_change=directive_view(state="requested", requested_at=NOW - 30))
    assert line(view) == (
        "No answer for 30 s. Compression may still be on. On any node of this run type: gradwire rollback --local",
        "30 秒无响应。压缩可能仍在运行。请在该任务的任一节点执行：gradwire rollback --local",
    )


def test_nothing_to_do_names_the_step() -> None:
    assert line(run_view(codec_since_step=38_000)) == (
        "Already uncompressed since step 38 000.",
        "自第 38000 步起已是无压缩模式。",
    )
    assert line(run_view())[0] == "Uncompressed since the start."


def test_by_rule_names_the_reason_and_that_it_stays_off() -> None:
    change = directive_view(cause="guard", author="", reason="the loss is not finite", seconds=None)
    assert line(run_view(last_change=change)) == (
        "Rolled back automatically at step 41 207: the loss is not finite. "
        "Compression stays off until someone turns it on.",
        "第 41207 步已自动回滚：the loss is not finite。在有人手动开启前保持无压缩。",
    )


def test_on_a_node_says_so() -> None:
    change = directive_view(cause="local", author="", seconds=None)
    assert line(run_view(last_change=change))[0] == (
        "Uncompressed on all 8 GPUs since step 41 207, rolled back on a node itself."
    )


def test_expired_says_that_the_training_did_not_answer() -> None:
    view = compressed_view(last_change=directive_view(state="expired", step=None))
    assert line(view)[0] == "Not applied: the training ended or started again before it answered."


def test_a_rollback_before_a_new_start_that_compresses_again_is_not_claimed() -> None:
    assert line(compressed_view(last_change=directive_view(state="applied")))[0] == PROMISE


def test_a_superseded_rollback_does_not_hide_the_promise() -> None:
    assert line(compressed_view(last_change=directive_view(state="superseded")))[0] == PROMISE


def test_an_ended_run_has_nothing_to_roll_back() -> None:
    view = compressed_view(summary={"status": StatusView(name="finished", since=NOW)})
    assert line(view)[0] == "This run has ended; there is nothing to roll back."


def test_line_keeps_the_promise_while_turning_on_is_open() -> None:
    view = run_view(last_change=directive_view(kind="set", codec="int8", state="requested"))
    assert line(view)[0] == PROMISE


def test_last_change_says_who_what_when_and_how_many_confirmed() -> None:
    change = directive_view(kind="set", codec="int8", reason="43 % waiting", requested_at=NOW - 3)
    view = compressed_view(last_change=change)
    assert plain(last_change(english(), view)) == (
        "Ada asked for int8 at 14:02:04 UTC. "
        "int8 on all 8 GPUs since step 41 207, 0.9 s after the click. Reason: 43 % waiting."
    )
    assert plain(last_change(chinese(), view)) == (
        "Ada 于 14:02:04 UTC 请求切换到 int8。"
        "自第 41207 步起，8 张卡全部使用 int8，距点击 0.9 秒。原因：43 % waiting。"
    )


def test_last_change_is_empty_without_one() -> None:
    assert last_change(english(), run_view()) == ""


@pytest.mark.parametrize("state", ["requested", "delivered", "applied", "rejected", "superseded", "expired"])
@pytest.mark.parametrize("kind", ["set", "rollback"])
def test_every_state_of_every_kind_has_a_sentence_of_its_own(kind: str, state: str) -> None:
    change = directive_view(kind=kind, codec="int8" if kind == "set" else "none", state=state)
    texts = [state_line(words, compressed_view(), change) for words in (english(), chinese())]
    assert all(texts)
    assert texts[0] != texts[1]


def asked(words: Wording, view: RunView, choice: CodecChoice) -> str:
    said = question(words, view, choice)
    return plain(words.join((said.asked, said.details)))


def test_question_names_codec_ranks_speed_and_memory() -> None:
    view = run_view(summary={"world_size": 128})
    choice = view.codecs[1]
    assert asked(english(), view, choice) == (
        "Turn on int8 on 128 GPUs? Expected 1.3× the speed; 1.20 GB more memory per GPU. "
        "Goes back by itself if the loss or a gradient is not finite, the loss leaps, or gradients stop matching."
    )
    assert asked(chinese(), view, choice) == (
        "在 128 张卡上开启 int8 压缩？预计速度 1.3 倍；每张卡多占 1.20 GB 显存。"
        "损失或梯度出现非有限值、损失骤升或梯度还原度骤降时自动回滚。"
    )


@pytest.mark.parametrize(
    ("note", "english_says", "chinese_says"),
    [(reasons.GUARD_OFF, "is off for this run", "已关闭"), (reasons.GUARD_REPORTS, "only reports", "仅报告")],
)
def test_question_promises_no_automatic_rollback_that_does_not_act(
    note: str, english_says: str, chinese_says: str
) -> None:
    view = run_view()
    view = structs.replace(view, trust=structs.replace(view.trust, notes=("something else", note)))
    for words, promise, says in (
        (english(), "by itself if", english_says),
        (chinese(), "时自动回滚。", chinese_says),
    ):
        text = asked(words, view, view.codecs[1])
        assert promise not in text
        assert says in text


def test_question_leaves_out_what_is_not_known() -> None:
    choice = CodecChoice(name="bf16", bits_per_element=16.0)
    text = asked(english(), run_view(summary={"device": "cpu", "world_size": 2}), choice)
    assert text.startswith("Turn on bf16 on 2 processes? Goes back")


def test_refusal_names_the_optimizer_and_the_safe_alternative() -> None:
    view = run_view()
    choice = view.codecs[2]
    assert refusal(english(), view, choice) == (
        "onebit is known to be safe with SGD only; this run uses AdamW. Use int8 instead."
    )
    assert refusal(chinese(), view, choice) == ("onebit 仅在使用 SGD 时确认安全，本次训练使用 AdamW。请改用 int8。")
    assert refusal(english(), view, view.codecs[1]) == ""


def test_refusal_for_another_reason_stands_as_the_agent_gave_it() -> None:
    choice = CodecChoice(name="int8", bits_per_element=8.0, refusal="the kernel is missing")
    assert refusal(english(), run_view(), choice) == "the kernel is missing."
