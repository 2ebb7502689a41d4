"""What the pages say of check windows and of samples of gradients, in both languages."""

import pytest
from gradwire_protocol.plans import PlanSpec
from gradwire_server.pages import run_page
from gradwire_server.pages.samples import concentration, copies, match, tried
from gradwire_server.pages.sentences.saving import saving_note
from gradwire_server.pages.sentences.verdict import verdict
from gradwire_server.runs.views import (
    MatchView,
    Measure,
    RehearsalView,
    ReplicasView,
    SamplesView,
    SavingView,
)
from made_view import chinese, compressed_view, english, paying_view, plain, run_view

INT8 = PlanSpec(codec="int8")


def tried_codec(codec: str, error: float) -> RehearsalView:
    return RehearsalView(
        codec=codec,
        cosine=1 - error**2 / 2,
        relative_error=error,
        encode_seconds=0.0021,
        decode_seconds=0.0009,
        num_buckets=3,
        last_step=900,
        norm_shares=(0.31, 0.52, 0.86),
    )


SAMPLES = SamplesView(
    match=MatchView(
        step=1200,
        codec="int8",
        cosine=0.99912,
        relative_error=0.043,
        worst_parameter="head.weight",
        worst_cosine=0.9,
    ),
    replicas=ReplicasView(step=1184, are_equal=True),
    rehearsal=(tried_codec("onebit", 0.6), tried_codec("int8", 0.012)),
)


def test_speed_by_check_windows_says_how_many():
    said = verdict(english(), paying_view(num_checks=9)).evidence
    assert "measured in 9 uncompressed checks of this run" in said
    assert "measured against" not in said
    assert "9 次无压缩抽检" in verdict(chinese(), paying_view(num_checks=9)).evidence


def test_saving_by_check_windows_says_so():
    saving = SavingView(saved_hours=Measure(value=3.0), num_checks=9, could_save_hours=Measure(value=1.0))
    assert saving_note(english(), run_view(saving=saving)).startswith("measured in 9 uncompressed checks")
    assert "无压缩抽检" in saving_note(chinese(), run_view(saving=saving))
    without = SavingView(saved_hours=Measure(value=3.0))
    assert "check" not in saving_note(english(), run_view(saving=without))


def test_match_names_the_worst_tensor():
    value, note = match(english(), compressed_view(samples=SAMPLES, plan=INT8))
    assert value == "0.9991"
    assert plain(note) == "step 1 200, relative error 4.3 %; lowest: head.weight at 0.900"


@pytest.mark.parametrize(("plan", "said"), [(INT8, "Not sampled yet."), (PlanSpec(), "Nothing is compressed.")])
def test_without_a_match_the_page_says_why(plan, said):
    assert match(english(), compressed_view(plan=plan)) == ("–", said)


def test_copies_of_the_model_are_said_to_be_equal_or_not():
    value, note = copies(english(), run_view(samples=SAMPLES))
    assert (value, plain(note)) == ("equal", "compared bit for bit at step 1 184")
    different = SamplesView(replicas=ReplicasView(step=5, are_equal=False))
    assert copies(english(), run_view(samples=different))[0] == "different"
    assert copies(english(), run_view()) == ("–", "Not compared yet.")


def test_codecs_that_were_tried_stand_in_order_of_their_error():
    lines = tried(english(), compressed_view(samples=SAMPLES, plan=INT8))
    assert [(line.codec, line.is_present) for line in lines] == [("int8", True), ("onebit", False)]
    assert [plain(text) for text in (lines[0].error, lines[0].encode, lines[0].decode)] == [
        "1.2 %",
        "2.1 ms",
        "0.9 ms",
    ]
    assert "31" in concentration(english(), run_view(samples=SAMPLES))
    assert concentration(english(), run_view()) == ""


def test_the_match_has_a_figure_once_it_was_sampled():
    views = run_view(), compressed_view(samples=SAMPLES)
    drawn = [[name for name, _ in run_page._charts(english(), view)] for view in views]
    assert ["match" in names for names in drawn] == [False, True]
