"""C33: wall clocks that jump or disagree harm no number, and the history says so."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from distributed.jobs import run_of, runs
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, train_step
from gradwire_protocol import routes
from prometheus_client.parser import text_string_to_metric_families
from server_process import ServerProcess, server

__all__ = ["server"]

pytestmark = pytest.mark.distributed


def _train(
    rank: int, world_size: int, folder: str, url: str, token: str, name: str, offset: float, jumps: dict[int, float]
) -> list[float]:
    """Train with a wall clock that is `offset` seconds ahead on rank 1, and set by `jumps` at these steps."""
    real, shift = time.time, offset if rank == 1 else 0.0

    def shifted() -> float:
        return real() + shift

    time.time = shifted
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token=token, run=name)
    seconds = []
    for step in range(1, 31):
        began = time.perf_counter()
        shift += jumps.get(step, 0.0)
        time.sleep(0.05)
        loss = train_step(ddp, optimizer, batch(rank, step))
        session.step(loss=loss, samples=16)
        seconds.append(time.perf_counter() - began)
    session.close()
    return seconds


@pytest.mark.parametrize(
    ("name", "offset", "jumps", "told"),
    [
        ("jumps", 0.0, {10: -3600.0, 20: 7200.0}, {("clock_jumped", r, s) for r in (0, 1) for s in (-3600, 7200)}),
        ("ahead", 300.0, {}, {("clock_skew", 1, 300)}),
        ("behind", -300.0, {}, {("clock_skew", 1, -300)}),
    ],
)
def test_c33_clocks_that_are_wrong_spoil_nothing(
    name: str,
    offset: float,
    jumps: dict[int, float],
    told: set[tuple[str, int, int]],
    server: ServerProcess,
    tmp_path: Any,
) -> None:
    seen: set[str] = set()
    arguments = (str(tmp_path), server.url, server.ingest_token, name, offset, jumps)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(run_ranks, 2, _train, *arguments)
        while not training.done():
            seen.update(run["status"]["name"] for run in runs(server, name))
            time.sleep(0.1)
    seconds = training.result()
    run = run_of(server, name)
    assert "running" in seen
    assert seen <= {"running", "finished"}, "nobody is dead because of a clock"
    assert run["status"]["name"] == "finished"
    client = server.operator()
    view = client.get(routes.RUN.format(run=run["id"])).json()
    truth = sum(map(sum, seconds)) / 60
    assert 16 / view["throughput"]["value"] * 2 == pytest.approx(truth, rel=0.3)
    sums = client.get(routes.SERIES.format(run=run["id"])).json()["steps"]
    assert [one["first_step"] for one in sums] == sorted(one["first_step"] for one in sums)
    measured = sum(one["step"] for one in sums) / sum(one["num_rank_steps"] for one in sums)
    assert measured == pytest.approx(truth, rel=0.3)
    assert all(value >= 0 for one in sums for value in one.values())
    loss = client.get(routes.SERIES.format(run=run["id"]), params={"name": "loss", "max_buckets": 1000}).json()
    assert [point["first_step"] for point in loss["points"]] == list(range(1, 31))
    scraped = client.get(routes.METRICS).text
    samples = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    assert samples
    assert all(sample.value >= 0 for sample in samples)
    events = client.get(routes.EVENTS.format(run=run["id"])).json()["events"]
    found = {
        (event["kind"], event["data"]["rank"], round(event["data"]["seconds"], -1))
        for event in events
        if event["kind"].startswith("clock")
    }
    assert found == told
