import json
import sqlite3
from typing import Any

import httpx
import pytest
from agent_stream import AgentStream
from gradwire_protocol import routes
from gradwire_protocol.identity import new_id
from gradwire_protocol.records import Event
from server_process import ServerProcess
from stored_run import metric, steps


def get(server: ServerProcess, path: str, status: int = 200, **parameters: object) -> dict[str, Any]:
    """Return a strict JSON answer: constants such as NaN fail."""
    answer = server.operator().get(path, params=parameters)  # type: ignore[arg-type]
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = json.loads(answer.content, parse_constant=pytest.fail)
    return found


def trained(server: ServerProcess, **facts: object) -> AgentStream:
    """Return a run with 200 uncompressed steps and a loss."""
    stream = AgentStream(server.agent(), **facts)
    stream.begin(
        *(steps(first) for first in range(0, 200, 10)), metric(0, [3.0 / (step + 1) for step in range(200)])
    )
    return stream


def choose(server: ServerProcess, run: str, baseline: str | None) -> httpx.Response:
    return server.operator().post(routes.BASELINE.format(run=run), json={"baseline": baseline})


def test_run_is_everything_on_its_page(server: ServerProcess) -> None:
    stream = trained(server, run_name="🚀 größe ✓ 实验")
    shown = get(server, routes.RUN.format(run=stream.run))
    assert shown["summary"]["name"] == "🚀 größe ✓ 实验"
    assert shown["summary"]["verdict"]["kind"] == "worth_it"
    assert shown["summary"]["status"]["name"] == "running"
    assert [stage["name"] for stage in shown["loop"]] == ["compute", "compress", "send", "decompress", "update"]


def test_runs_are_paged(server: ServerProcess) -> None:
    made = [trained(server, run_name="paged").run for _ in range(3)]
    seen: list[str] = []
    page = get(server, routes.RUNS, limit=2)
    while page["next"] is not None:
        seen += [run["id"] for run in page["runs"]]
        page = get(server, routes.RUNS, limit=2, before=page["next"])
    seen += [run["id"] for run in page["runs"]]
    assert seen[:3] == made[::-1]
    assert len(seen) == len(set(seen))


def test_history_is_paged_newest_first(server: ServerProcess) -> None:
    stream = AgentStream(server.agent())
    stream.begin(*(Event(at=0.0, step=step, kind="note", message=f"note {step}") for step in range(5)))
    path = routes.EVENTS.format(run=stream.run)
    first = get(server, path, limit=4)
    second = get(server, path, limit=4, before=first["next"])
    lines = [*first["events"], *second["events"]]
    assert [line["number"] for line in lines] == [6, 5, 4, 3, 2, 1]
    assert lines[-1]["kind"] == "attempt_started"
    assert second["next"] is None


def test_series_of_a_metric_and_of_steps(server: ServerProcess) -> None:
    stream = trained(server)
    path = routes.SERIES.format(run=stream.run)
    loss = get(server, path, name="loss", max_buckets=50)
    assert len(loss["points"]) <= 50
    assert sum(bucket["count"] for bucket in loss["points"]) == 200
    assert loss["steps"] is None
    whole = get(server, path, first_step=50, last_step=99)
    assert whole["names"] == ["loss"]
    assert [bucket["first_step"] for bucket in whole["steps"]] == [50, 60, 70, 80, 90]


def test_non_finite_values_stay_apart_and_answers_are_strict_json(server: ServerProcess) -> None:
    # Field case C43.
    stream = AgentStream(server.agent())
    stream.begin(metric(3, [None]), *(metric(3, [value], name=name) for name, value in EXTREMES.items()))
    path = routes.SERIES.format(run=stream.run)
    for name, value in EXTREMES.items():
        (bucket,) = get(server, path, name=name)["points"]
        assert bucket["last"] == bucket["min"] == bucket["max"] == value
    (bucket,) = get(server, path, name="loss")["points"]
    assert (bucket["last"], bucket["count"], bucket["num_nonfinite"]) == (None, 0, 1)
    assert get(server, routes.RUN.format(run=stream.run))["num_nonfinite"] == 1
    get(server, routes.RUNS)


EXTREMES = {"c": 0.5, "d": 1e308, "e": 5e-324}


@pytest.mark.parametrize("name", ["train/loss", "a%2Fb", "f1@k=5", "loss?x=1#y", "a b", "<b>x</b>"])
def test_metric_of_any_name_is_charted(server: ServerProcess, name: str) -> None:
    stream = AgentStream(server.agent())
    stream.begin(metric(0, [1.0, 2.0], name=name), metric(0, [5.0], name="a/b"))
    shown = get(server, routes.SERIES.format(run=stream.run), name=name)
    assert [bucket["last"] for bucket in shown["points"]] == [1.0, 2.0]
    assert sorted(shown["names"]) == sorted([name, "a/b"])


@pytest.mark.parametrize("figure", ["steps", "throughput", "loss", "bytes"])
def test_figure_is_served_in_look_and_language(server: ServerProcess, figure: str) -> None:
    path = routes.FIGURES.format(run=trained(server).run, figure=figure)
    made = get(server, path, theme="dark", language="zh")
    assert made["data"]
    english = get(server, path)
    assert made["layout"]["template"] != english["layout"]["template"]


def test_baseline_is_chosen_audited_and_told(server: ServerProcess) -> None:
    baseline, run = trained(server, run_name="exact").run, trained(server).run
    assert get(server, routes.RUN.format(run=run))["quality"]["reason"] == "no_baseline"
    assert choose(server, run, baseline).json() == {"baseline": baseline, "is_new": True}
    quality = get(server, routes.RUN.format(run=run))["quality"]
    assert (quality["state"], quality["baseline_name"], quality["drift"]["value"]) == ("within_limit", "exact", 0.0)
    assert choose(server, run, baseline).json()["is_new"] is False
    line = get(server, routes.EVENTS.format(run=run), limit=1)["events"][0]
    assert (line["kind"], line["data"]["baseline"], line["data"]["name"]) == ("baseline", baseline, "exact")
    with sqlite3.connect(f"file:{server.database_path}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT before, after FROM audit WHERE run = ? AND action = 'baseline'", (run,))
        changes = [(json.loads(before), json.loads(after)) for before, after in rows]
    assert changes == [({"baseline": None}, {"baseline": baseline})]
    assert choose(server, run, None).json() == {"baseline": None, "is_new": True}
    assert get(server, routes.RUN.format(run=run))["quality"]["reason"] == "no_baseline"


def test_baseline_must_be_another_known_run(server: ServerProcess) -> None:
    run = trained(server).run
    for baseline in (run, new_id(), "../../etc/passwd"):
        answer = choose(server, run, baseline)
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "baseline")
    assert choose(server, new_id(), run).status_code == 404


@pytest.mark.parametrize(
    "route", [routes.RUN, routes.EVENTS, routes.SERIES, routes.FIGURES.replace("{figure}", "loss")]
)
@pytest.mark.parametrize("run", [new_id(), "..%2f..%2fetc%2fpasswd", "x" * 5000])
def test_unknown_run_is_404_in_the_one_shape(server: ServerProcess, route: str, run: str) -> None:
    error = get(server, route.format(run=run), 404)["error"]
    assert error["code"] == "not_found"
    assert len(error["message"]) < 300


def test_unknown_metric_figure_and_model_are_404(server: ServerProcess) -> None:
    run = trained(server).run
    assert get(server, routes.SERIES.format(run=run), 404, name="other")["error"]["field"] == "name"
    assert get(server, routes.FIGURES.format(run=run, figure="x"), 404)["error"]["field"] == "figure"
    assert get(server, routes.RUN.format(run=run), 404, model="other")["error"]["field"] == "model"


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        (routes.RUNS, {"limit": 0}),
        (routes.RUNS, {"limit": 10**6}),
        (routes.SERIES, {"max_buckets": 10**9}),
        (routes.SERIES, {"first_step": 2**63}),
        (routes.SERIES, {"first_step": "1.5"}),
        (routes.EVENTS, {"before": 10**30}),
        (routes.FIGURES.replace("{figure}", "loss"), {"theme": "pink"}),
    ],
)
def test_parameters_out_of_range_are_422_naming_them(
    server: ServerProcess, path: str, parameters: dict[str, object]
) -> None:
    run = trained(server).run
    error = get(server, path.format(run=run), 422, **parameters)["error"]
    assert error["field"] == next(iter(parameters))


@pytest.mark.parametrize("path", [routes.RUNS, routes.RUN, routes.EVENTS, routes.SERIES])
def test_reading_needs_a_login_or_token(server: ServerProcess, path: str) -> None:
    address = path.format(run=new_id())
    assert server.anonymous().get(address).status_code == 401
    assert server.agent().get(address).status_code == 403
    assert server.anonymous().post(routes.BASELINE.format(run=new_id()), json={}).status_code == 401
