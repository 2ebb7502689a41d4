"""The ring of one step, and the sparkline of the list."""

from itertools import pairwise

import pytest
from gradwire_server.pages.loop import GAP, loop
from gradwire_server.pages.runs_page import rows, spark_points
from gradwire_server.runs.views import LoopStage, Measure
from made_view import chinese, english, plain, run_summary, run_view


def test_stages_stand_in_order_and_the_rest_of_the_step_comes_last() -> None:
    stages = loop(english(), run_view())
    assert [stage.label for stage in stages] == [
        "Compute",
        "Compress",
        "Send",
        "Decompress",
        "Update",
        "Everything else",
    ]
    assert [plain(stage.share) for stage in stages] == ["38 %", "0.0 %", "45 %", "0.0 %", "7.5 %", "10 %"]
    assert plain(stages[5].milliseconds) == "40.0 ms"
    assert [stage.is_largest for stage in stages] == [False, False, True, False, False, False]


def test_arcs_fill_the_ring_without_overlap() -> None:
    stages = [stage for stage in loop(english(), run_view()) if stage.length > 0]
    for before, after in pairwise(stages):
        assert before.start + before.length <= after.start
    assert stages[-1].start + stages[-1].length <= 100
    assert sum(stage.length + GAP for stage in stages) == pytest.approx(100, abs=0.01)


def test_a_step_without_rest_shows_none() -> None:
    names = ("compute", "compress", "send", "decompress", "update")
    stages = loop(english(), run_view(loop=tuple(LoopStage(name=name, seconds=0.08, share=0.2) for name in names)))
    assert len(stages) == 5


def test_unmeasured_stages_are_dashes_and_not_zero() -> None:
    names = ("compute", "compress", "send", "decompress", "update")
    unknown = tuple(LoopStage(name=name, seconds=None, share=None) for name in names)
    stages = loop(chinese(), run_view(loop=unknown, step_seconds=Measure(reason="no steps")))
    assert [(stage.milliseconds, stage.share) for stage in stages] == [("–", "–")] * 5
    assert not any(stage.length > 0 for stage in stages)


def test_sparkline_breaks_where_the_share_is_unknown() -> None:
    assert spark_points((0.4, 0.8, None, 0.0, 1.0)) == ("0.0,12.0 25.0,1.0", "75.0,23.0 100.0,1.0")


def test_sparkline_of_too_few_points_is_empty() -> None:
    assert spark_points(()) == ()
    assert spark_points((0.4,)) == ()
    assert spark_points((0.4, None)) == ()


def test_row_says_what_is_known_in_short() -> None:
    (row,) = rows(english(), [run_summary()])
    assert (row.name, plain(row.position), row.status) == ("llama-7b", "step 41 207 of 100 000", "Running")
    assert (row.verdict, plain(row.share), row.speed) == ("Worth it", "43 %", "–")
    assert (row.compression, row.quality) == ("Uncompressed", "No evidence")


def test_row_of_an_unmeasured_run_has_dashes() -> None:
    verdict = run_summary().verdict
    unknown = type(verdict)(kind="cannot_say", share=Measure(reason="no steps"))
    (row,) = rows(english(), [run_summary(verdict=unknown, total_steps=None, sparkline=())])
    assert (row.share, row.speed, plain(row.position)) == ("–", "–", "step 41 207")
