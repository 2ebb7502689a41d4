"""Finish date, hours saved, status, trust line."""

from gradwire_server.pages.sentences.saving import finish_date, finish_note, hours, saving_note
from gradwire_server.pages.sentences.trust import compression_now, position, status, trust
from gradwire_server.runs.views import Measure, SavingView, StatusView, TrustView
from gradwire_server.verdict import reasons
from made_view import NOW, chinese, compressed_view, english, measure, plain, run_summary, run_view


def test_finish_date_is_a_day_and_what_it_rests_on() -> None:
    view = run_view()
    assert (finish_date(english(), view), finish_note(english(), view)) == (
        "Wed 13 May",
        "In 9 days at the present speed.",
    )
    assert (finish_date(chinese(), view), finish_note(chinese(), view)) == ("5月13日 周三", "按当前速度还需 9 天。")


def test_finish_date_names_the_hour_when_it_is_near() -> None:
    assert finish_date(english(), run_view(finish_at=measure(NOW + 3600))) == "Mon 4 May 15:02"


def test_an_unknown_finish_date_is_a_dash_with_the_reason() -> None:
    view = run_view(finish_at=Measure(reason=reasons.NO_TOTAL))
    assert (finish_date(english(), view), finish_note(english(), view)) == (
        "–",
        "Not known: the total number of steps is not known.",
    )


def test_an_ended_run_shows_when_it_ended() -> None:
    view = run_view(summary={"status": StatusView(name="finished", since=NOW)}, finish_at=Measure(reason="x"))
    assert (finish_date(english(), view), finish_note(english(), view)) == ("Mon 4 May 14:02", "The run has ended.")


def test_hours_are_of_gpus_or_of_processes() -> None:
    assert plain(hours(english(), measure(12.44), "cuda")) == "12.4 GPU-hours"
    assert plain(hours(english(), measure(1234.5), "cuda")) == "1 234 GPU-hours"
    assert plain(hours(english(), measure(0.0021), "cpu")) == "0.002 process-hours"
    assert plain(hours(chinese(), measure(12.44), "cuda")) == "12.4 卡时"
    assert hours(english(), Measure(reason="x"), "cuda") == "–"


def test_saving_note_never_mixes_what_will_and_what_could_be_saved() -> None:
    assert plain(saving_note(english(), run_view())) == "could save 210 GPU-hours"
    saving = SavingView(
        saved_hours=measure(1.0), will_save_hours=measure(30.0), could_save_hours=Measure(reason="x")
    )
    assert plain(saving_note(english(), run_view(saving=saving))) == "will save 30.0 GPU-hours"


def test_saving_note_names_the_reason_when_nothing_is_known() -> None:
    saving = SavingView(saved_hours=Measure(reason=reasons.NO_STEPS))
    assert saving_note(english(), run_view(saving=saving)) == "Not known: no step has been measured so far."


def test_status_is_told_in_words_with_the_time() -> None:
    def told(name: str, detail: str = "") -> str:
        view = run_summary(status=StatusView(name=name, since=NOW, detail=detail))  # type: ignore[arg-type]
        return status(english(), view)

    assert told("running") == "Running"
    assert told("silent") == "No data since 14:02:07 UTC"
    assert told("lost") == "No contact since 14:02:07 UTC"
    assert told("failed", "OSError") == "Failed at 14:02:07 UTC: OSError"
    assert told("failed") == "Failed at 14:02:07 UTC"


def test_position_is_of_the_total_where_it_is_known() -> None:
    assert plain(position(english(), run_summary())) == "step 41 207 of 100 000"
    assert plain(position(chinese(), run_summary())) == "第 41207 步，共 100 000 步"
    assert plain(position(english(), run_summary(total_steps=None))) == "step 41 207"


def test_compression_now_names_method_ranks_and_step() -> None:
    assert plain(compression_now(english(), run_view())) == "Uncompressed on 8 GPUs"
    assert plain(compression_now(english(), compressed_view())) == "int8 on 8 GPUs since step 38 000"
    assert plain(compression_now(chinese(), compressed_view())) == "8 张卡自第 38000 步起使用 int8"


def test_trust_line_tells_age_nodes_cost_and_losses() -> None:
    assert [plain(part) for part in trust(english(), run_view())] == [
        "Data 1 s old",
        "2 of 2 nodes reporting",
        "Gradwire itself takes 0.2 % of a step",
    ]
    view = TrustView(
        age_seconds=None,
        num_nodes_reporting=0,
        num_nodes=1,
        agent_cost=Measure(reason="x"),
        num_dropped=3,
        differing_parameter="body.weight",
    )
    assert trust(english(), run_view(trust=view)) == [
        "No data so far",
        "Gradwire's own cost is not measured yet",
        "3 records were dropped",
        "Copies of the model differ, first in body.weight",
    ]
