import contextlib
import json
import shutil
import socket
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_stream import AgentStream
from gradwire_protocol import routes
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from server_process import ServerProcess
from stored_run import steps

RULES = files("gradwire_server.metrics") / "rules.yml"
# What Prometheus 2 sends.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,text/plain;q=0.5"
)

NASTY = 'Mac 14" \\ C:\\new x\u2028y 🚀 </script>'


def scrape(server: ServerProcess, accept: str = "") -> httpx.Response:
    headers = {"Accept": accept} if accept else {}
    answer = server.operator().get(routes.METRICS, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def samples(server: ServerProcess, run: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the samples of one run by name and the labels beyond project and run."""
    found = {}
    for family in parse_text(scrape(server).text):
        for sample in family.samples:
            if sample.labels.get("run") == run:
                rest = tuple(sorted((k, v) for k, v in sample.labels.items() if k not in ("project", "run")))
                found[sample.name, rest] = sample.value
    return found


def test_metrics_have_numerators_and_denominators(server: ServerProcess) -> None:
    stream = AgentStream(server.agent(), project="llama")
    stream.begin(steps(0, wait=0.005, overlapped=0.010), steps(10, codec_seconds=0.004))
    found = samples(server, stream.run)
    assert found["gradwire_step_seconds_total", ()] == pytest.approx(4.0)
    assert found["gradwire_compute_seconds_total", (("phase", "forward"),)] == pytest.approx(0.8)
    assert found["gradwire_comm_seconds_total", (("kind", "exposed_transfer"),)] == pytest.approx(1.6)
    assert found["gradwire_comm_seconds_total", (("kind", "straggler_wait"),)] == pytest.approx(0.1)
    assert found["gradwire_comm_seconds_total", (("kind", "overlapped"),)] == pytest.approx(0.2)
    assert found["gradwire_codec_seconds_total", (("op", "decode"),)] == pytest.approx(0.02)
    assert found["gradwire_tokens_total", ()] == 40_000
    assert found["gradwire_samples_total", ()] == 1280
    assert found["gradwire_wire_bytes_total", ()] == found["gradwire_logical_bytes_total", ()] == 160_000_000
    assert found["gradwire_rollbacks_total", (("cause", "guard"),)] == 0
    assert found["gradwire_applied_ranks", ()] == 2
    assert found["gradwire_link_bytes_per_second", (("kind", "nominal"),)] == 125e6
    assert found["gradwire_run_live", ()] == 1
    assert found["gradwire_last_sample_timestamp_seconds", ()] == pytest.approx(time.time(), abs=60)


def test_batch_sent_twice_counts_once(server: ServerProcess) -> None:
    stream = AgentStream(server.agent())
    stream.begin()
    batch = stream.batch(steps(0))
    for _ in range(3):
        assert stream.post(batch).status_code == 200
    assert samples(server, stream.run)["gradwire_rank_steps_total", ()] == 20


@pytest.mark.parametrize(
    ("accept", "content_type", "parse"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8", parse_text),
        (ACCEPT, "application/openmetrics-text; version=1.0.0; charset=utf-8", parse_openmetrics),
    ],
)
def test_scrape_parses_in_both_formats_and_keeps_nasty_names(
    server: ServerProcess, accept: str, content_type: str, parse: Any
) -> None:
    stream = AgentStream(server.agent(), run_name=NASTY, project=NASTY)
    stream.begin(steps(0))
    answer = scrape(server, accept)
    assert answer.headers["content-type"].startswith(content_type)
    families: list[Metric] = list(parse(answer.text))
    info = [
        sample.labels
        for family in families
        if family.name == "gradwire_run_info"
        for sample in family.samples
        if sample.labels["run"] == stream.run
    ]
    assert [(labels["name"], labels["project"]) for labels in info] == [(NASTY, NASTY)]
    identities = [
        (sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples
    ]
    assert len(identities) == len(set(identities))
    assert all(sample.timestamp is None for family in families for sample in family.samples)


def test_runs_of_one_name_are_apart_and_a_change_of_codec_leaves_one_series(server: ServerProcess) -> None:
    first, second = (AgentStream(server.agent(), run_name="same") for _ in range(2))
    first.begin(steps(0))
    second.begin(steps(0), steps(10), steps(20, codec="int8", epoch=1))
    assert samples(server, first.run)["gradwire_steps_total", ()] == 10
    found = samples(server, second.run)
    assert found["gradwire_steps_total", ()] == 30
    assert [labels for name, labels in found if name == "gradwire_run_info"] == [
        (("codec", "int8"), ("name", "same"))
    ]


def test_metrics_need_a_token(server: ServerProcess) -> None:
    assert server.anonymous().get(routes.METRICS).status_code == 401
    assert server.agent().get(routes.METRICS).status_code == 403


def test_metrics_answer_while_the_database_is_locked(server: ServerProcess) -> None:
    scrape(server)
    with contextlib.closing(sqlite3.connect(server.database_path, isolation_level=None)) as outside:
        outside.execute("BEGIN EXCLUSIVE")
        answer = server.operator().get(routes.METRICS)
        outside.execute("ROLLBACK")
    assert answer.status_code == 200


def promtool(*arguments: str | Path) -> None:
    path = shutil.which("promtool")
    if path is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_rules_are_accepted_by_promtool() -> None:
    promtool("check", "rules", Path(str(RULES)))


# A run of two ranks: every 30 s it adds 24 s of computation, 18 s of communication and 60 s of steps, 6 s of them
# pauses; a second run of the same project has no communication known in parts.
RULES_TEST = """
rule_files: [RULES]
evaluation_interval: 30s
tests:
  - interval: 30s
    input_series:
      - {series: 'gradwire_step_seconds_total{project="p",run="a"}', values: '0+60x100'}
      - {series: 'gradwire_pause_seconds_total{project="p",run="a"}', values: '0+6x100'}
      - {series: 'gradwire_split_training_seconds_total{project="p",run="a"}', values: '0+54x100'}
      - {series: 'gradwire_compute_seconds_total{project="p",run="a",phase="forward"}', values: '0+8x100'}
      - {series: 'gradwire_compute_seconds_total{project="p",run="a",phase="backward"}', values: '0+16x100'}
      - {series: 'gradwire_comm_seconds_total{project="p",run="a",kind="exposed_transfer"}', values: '0+13.5x100'}
      - {series: 'gradwire_comm_seconds_total{project="p",run="a",kind="straggler_wait"}', values: '0+1.5x100'}
      - {series: 'gradwire_comm_seconds_total{project="p",run="a",kind="overlapped"}', values: '0+3x100'}
      - {series: 'gradwire_compute_seconds_total{project="p",run="b",phase="forward"}', values: '0+10x100'}
      - {series: 'gradwire_comm_seconds_total{project="p",run="b",kind="exposed_unsplit"}', values: '0+5x100'}
      - {series: 'gradwire_run_info{project="p",run="a",name="x",codec="none"}', values: '1x100'}
      - {series: 'gradwire_run_live{project="p",run="a"}', values: '1x100'}
      - {series: 'gradwire_run_ended{project="p",run="a"}', values: '0x100'}
      - {series: 'gradwire_run_live{project="p",run="lost"}', values: '0x100'}
      - {series: 'gradwire_run_ended{project="p",run="lost"}', values: '0x100'}
      - {series: 'gradwire_run_live{project="p",run="done"}', values: '0x100'}
      - {series: 'gradwire_run_ended{project="p",run="done"}', values: '1x100'}
      - {series: 'gradwire_rollbacks_total{project="p",run="a",cause="guard"}', values: '0x40 1x60'}
    promql_expr_test:
      - expr: round(run:gradwire_communication_compute:ratio_rate5m, 0.0001)
        eval_time: 20m
        exp_samples:
          - {labels: '{project="p",run="a"}', value: 0.75}
          - {labels: '{project="p",run="b"}', value: 0.5}
      - expr: round(run:gradwire_exposed_transfer_per_step:ratio_rate5m, 0.0001)
        eval_time: 20m
        exp_samples:
          - {labels: '{project="p",run="a"}', value: 0.25}
    alert_rule_test:
      - eval_time: 15m
        alertname: GradwireWorthCompressing
        exp_alerts: []
      - eval_time: 40m
        alertname: GradwireWorthCompressing
        exp_alerts:
          - exp_labels: {severity: info, project: p, run: a}
            exp_annotations: {summary: "Run a waits 25% of every step for gradients, uncompressed."}
      - eval_time: 5m
        alertname: GradwireRunSilent
        exp_alerts:
          - exp_labels: {severity: warning, project: p, run: lost}
            exp_annotations: {summary: Nothing is heard of run lost of p.}
      - eval_time: 22m
        alertname: GradwireRolledBackByItself
        exp_alerts:
          - exp_labels: {severity: critical, project: p, run: a}
            exp_annotations: {summary: Run a went back to uncompressed by itself.}
"""


@pytest.mark.prometheus
def test_rules_form_the_ratios_and_alerts_that_they_say(tmp_path: Path) -> None:
    path = tmp_path / "rules_test.yml"
    path.write_text(RULES_TEST.replace("RULES", json.dumps(str(RULES)), 1))
    promtool("test", "rules", path)


@pytest.fixture
def prometheus(server: ServerProcess, tmp_path: Path) -> Iterator[httpx.Client]:
    """A real Prometheus that scrapes the server every second."""
    path = shutil.which("prometheus")
    if path is None:
        pytest.skip("prometheus is not installed (Debian's package prometheus has it)")
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    rules = tmp_path / "rules.yml"
    rules.write_text(RULES.read_text().replace("interval: 30s", "interval: 1s"))
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [
            {
                "job_name": "gradwire",
                "authorization": {"credentials": server.operator_token},
                "static_configs": [{"targets": [server.url.removeprefix("http://")]}],
            }
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    command = [path, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://{address}", trust_env=False) as client:
            yield client
    finally:
        process.terminate()
        process.wait(20)


def ask(prometheus: httpx.Client, query: str) -> float | None:
    """Return the only value of an instant query; None while there is none."""
    with contextlib.suppress(httpx.TransportError):
        answer = prometheus.get("/api/v1/query", params={"query": query})
        if answer.status_code == 200 and (found := answer.json()["data"]["result"]):
            return float(found[0]["value"][1])
    return None


@pytest.mark.prometheus
def test_real_prometheus_forms_the_communication_compute_ratio(
    server: ServerProcess, prometheus: httpx.Client
) -> None:
    stream = AgentStream(server.agent())
    stream.begin(steps(0))
    query = f'run:gradwire_communication_compute:ratio_rate5m{{run="{stream.run}"}}'
    deadline = time.monotonic() + 60
    value, first = None, 10
    while value is None and time.monotonic() < deadline:
        # 40 ms of 100 are communication, 50 are forward and backward.
        stream.send(steps(first))
        first += 10
        time.sleep(0.5)
        value = ask(prometheus, query)
    assert value == pytest.approx(0.8)
    assert ask(prometheus, f'gradwire_run_live{{run="{stream.run}"}}') == 1
    assert ask(prometheus, 'up{job="gradwire"}') == 1
