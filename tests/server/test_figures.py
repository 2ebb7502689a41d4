import json
import re
from typing import Any

import msgspec
import pytest
from gradwire_server.database.tables import runs
from gradwire_server.figures.drawing import literal, switches
from gradwire_server.figures.routes import FIGURES, draw
from gradwire_server.figures.themes import PALETTES, Theme
from gradwire_server.runs.sources import load_source
from gradwire_server.series.windows import stretches
from sqlalchemy import Connection, update
from stored_run import StoredRun, metric, steps

EVIL = '<img src=x onerror=alert(1)><a href="javascript:alert(1)">x</a>&lt;'


def english(message: str, /, **values: object) -> str:
    return message.format(**values)


def figure(
    connection: Connection, run: StoredRun, name: str, theme: Theme = "light", **changes: Any
) -> dict[str, Any]:
    """Return a figure as the page gets it; constants beyond strict JSON fail."""
    source = load_source(connection, run.id)
    assert source is not None
    drawn = draw(connection, source, name, theme, changes.pop("say", english), **changes)
    made: dict[str, Any] = json.loads(msgspec.json.encode(drawn.to_plotly_json()), parse_constant=pytest.fail)
    return made


def traces(made: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in made["data"]}


@pytest.fixture
def run(connection: Connection) -> StoredRun:
    """200 uncompressed steps, then 200 with int8."""
    run = StoredRun(connection)
    for first in range(0, 200, 10):
        run.send(steps(first, wait=0.005, data_wait=0.001), metric(first, [3.0 / (first + 1)] * 10))
    run.switch(200, 1, "int8")
    for first in range(200, 400, 10):
        run.send(steps(first, step=0.070, transfer=0.010, codec_seconds=0.005, codec="int8", epoch=1))
    return run


def test_breakdown_stacks_to_the_training_time(connection: Connection, run: StoredRun) -> None:
    parts = figure(connection, run, "steps")["data"]
    assert {part["stackgroup"] for part in parts} == {"step"}
    totals = [sum(values) for values in zip(*(part["y"] for part in parts), strict=True)]
    assert totals == pytest.approx([100.0] * 20 + [70.0] * 20)
    by_name = traces({"data": parts})
    assert by_name["Waiting for transfer"]["y"][0] == pytest.approx(40.0)
    assert by_name["Waiting for a slow process"]["y"][0] == pytest.approx(5.0)
    assert by_name["Compress and decompress"]["y"][-1] == pytest.approx(5.0)
    # A part that never takes time is no entry of the legend.
    assert "Communication, not told apart" not in by_name


def test_breakdown_shows_communication_whose_split_is_unknown(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(*(steps(first, transfer=None) for first in range(0, 100, 10)))
    by_name = traces(figure(connection, run, "steps"))
    assert by_name["Communication, not told apart"]["y"] == pytest.approx([40.0] * 10)
    assert "Waiting for transfer" not in by_name


def test_throughput_marks_the_switch(connection: Connection, run: StoredRun) -> None:
    made = figure(connection, run, "throughput")
    (line,) = made["data"]
    assert line["name"] == "tokens/s"
    assert line["y"] == pytest.approx([2 * 1000 / 0.100] * 20 + [2 * 1000 / 0.070] * 20)
    assert [shape["x0"] for shape in made["layout"]["shapes"]] == [200]
    assert [note["text"] for note in made["layout"]["annotations"]] == ["int8"]


def test_bytes_before_compression_and_sent(connection: Connection, run: StoredRun) -> None:
    by_name = traces(figure(connection, run, "bytes"))
    assert by_name["Before compression"]["y"] == pytest.approx([4.0] * 40)
    assert by_name["Actually sent"]["y"] == pytest.approx([4.0] * 20 + [1.0] * 20)


def test_loss_has_gap_mark_and_count_at_non_finite_values(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1.0, 0.5, None, None, 0.0, -0.1, 0.4]))
    made = figure(connection, run, "loss")
    line = traces(made)["loss"]
    assert line["y"] == [1.0, 0.5, None, None, 0.0, -0.1, 0.4]
    assert line["connectgaps"] is False
    assert [shape["x0"] for shape in made["layout"]["shapes"]] == [2, 3]
    assert [note["text"] for note in made["layout"]["annotations"]] == ["2 non-finite"]


def test_spike_of_a_long_loss_shows_in_the_band(connection: Connection) -> None:
    run = StoredRun(connection)
    for first in range(0, 5000, 1000):
        run.send(metric(first, [99.0 if step == 3210 else 1.0 for step in range(first, first + 1000)]))
    by_name = traces(figure(connection, run, "loss"))
    assert max(by_name["Largest"]["y"]) == 99.0
    assert len(by_name["loss"]["y"]) <= 300


@pytest.mark.parametrize("values", [[], [None, None], [1.0]])
def test_loss_of_no_or_hardly_any_values_is_a_figure(connection: Connection, values: list[float | None]) -> None:
    run = StoredRun(connection)
    run.send(*([metric(0, values)] if values else []))
    assert figure(connection, run, "loss")["layout"]


def test_loss_shows_the_baseline_as_far_as_the_run_has_come(connection: Connection) -> None:
    baseline, run = StoredRun(connection, run_name="exact"), StoredRun(connection)
    baseline.send(metric(0, [2.0] * 100))
    run.send(metric(0, [3.0] * 50))
    connection.execute(update(runs).where(runs.c.id == run.id).values(baseline_run=baseline.id))
    by_name = traces(figure(connection, run, "loss"))
    assert by_name["exact"]["x"][-1] == 49


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_figure_draws_svg_traces_in_its_theme_without_a_title(
    connection: Connection, run: StoredRun, name: str, theme: Theme
) -> None:
    made = figure(connection, run, name, theme)
    assert {trace.get("type", "scatter") for trace in made["data"]} == {"scatter"}
    assert "title" not in made["layout"]
    assert made["layout"]["template"]["layout"]["font"]["color"] == PALETTES[theme].ink
    assert made["layout"]["template"]["layout"]["paper_bgcolor"] == "rgba(0, 0, 0, 0)"


@pytest.mark.parametrize("name", FIGURES)
def test_figure_says_everything_in_the_readers_language(connection: Connection, run: StoredRun, name: str) -> None:
    def chinese(message: str, /, **values: object) -> str:
        return "译" + message.format(**values)

    made = figure(connection, run, name, say=chinese)
    axes = [made["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")]
    names = [trace["name"] for trace in made["data"]]
    own = {"loss", "int8"}
    assert all(text.startswith("译") for text in [*axes, *names] if text not in own)


def test_user_text_is_never_markup(connection: Connection) -> None:
    baseline, run = StoredRun(connection, run_name=EVIL), StoredRun(connection)
    baseline.send(metric(0, [1.0] * 10))
    run.send(steps(0), metric(0, [1.0] * 10), steps(10, codec="<b>x</b>", epoch=1))
    connection.execute(update(runs).where(runs.c.id == run.id).values(baseline_run=baseline.id))
    for name in FIGURES:
        made = json.dumps(figure(connection, run, name))
        assert not re.search("<[a-z/]", made)
    assert literal(EVIL) in traces(figure(connection, run, "loss"))


def test_range_of_steps_can_be_asked(connection: Connection, run: StoredRun) -> None:
    made = figure(connection, run, "throughput", first_step=100, last_step=150)
    assert min(made["data"][0]["x"]) >= 100
    assert max(made["data"][0]["x"]) <= 160


def test_switches_are_changes_of_the_codec_only(connection: Connection, run: StoredRun) -> None:
    run.send(steps(400, codec="int8", epoch=2, is_settling=True), steps(410, codec="none", epoch=3))
    assert switches(stretches(connection, run.id, "model")) == [(200, "int8"), (410, "none")]


def test_gradient_match_is_a_curve_of_its_own(connection: Connection) -> None:
    run = StoredRun(connection)
    run.switch(5, 1, "int8")
    run.send(steps(0, 10, codec="int8", epoch=1), metric(0, [0.99, 0.98, 0.97], name="gradwire/gradient_match"))
    assert traces(figure(connection, run, "match"))["Gradient match"]["y"] == [0.99, 0.98, 0.97]
