"""C30: a server that is away costs training nothing and loses nothing."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, tell, train_step
from gradwire_protocol import routes
from server_process import ServerProcess

pytestmark = pytest.mark.distributed

NUM_STEPS = 200


def _train(rank: int, world_size: int, folder: str, url: str | None, token: str) -> tuple[Any, ...]:
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token=token, run="outage") if url else None
    for step in range(1, NUM_STEPS + 1):
        time.sleep(0.02)
        loss = train_step(ddp, optimizer, batch(rank, step))
        if session is not None:
            session.step(loss=loss, samples=16)
        if rank == 0:
            tell(folder, "progress", step)
    summary = session.close() if session is not None else None
    waiting = summary.num_undelivered if summary is not None else 0
    return flat(ddp), session.run_id if session is not None else "", waiting


def _wait_for_step(folder: Path, step: int) -> None:
    deadline = time.monotonic() + 90
    progress = folder / "progress"
    while not progress.exists() or int(progress.read_text()) < step:
        assert time.monotonic() < deadline, f"step {step} was not reached"
        time.sleep(0.01)


def _loss_steps(server: ServerProcess, run: str) -> list[int]:
    answer = server.operator().get(routes.SERIES.format(run=run), params={"name": "loss", "max_buckets": 1000})
    assert answer.status_code == 200, answer.text
    buckets = answer.json()["points"]
    assert all(bucket["count"] == 1 and bucket["num_nonfinite"] == 0 for bucket in buckets)
    return [bucket["first_step"] for bucket in buckets]


@pytest.fixture(scope="module")
def weights_without_agent(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    folder = str(tmp_path_factory.mktemp("plain"))
    return run_ranks(2, _train, folder, None, "")[0][0]


def test_c30_server_comes_goes_and_comes_back(tmp_path, weights_without_agent):
    with ServerProcess(tmp_path) as server:
        # The address must be known before the server is there.
        server.kill()

        def come_and_go() -> None:
            _wait_for_step(tmp_path, 50)
            server.restart()
            _wait_for_step(tmp_path, 100)
            server.kill()
            _wait_for_step(tmp_path, 150)
            server.restart()

        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(come_and_go)
            results = run_ranks(2, _train, str(tmp_path), server.url, server.ingest_token, timeout=120)
            coming.result()
        _deliver(tmp_path, server)
        assert _loss_steps(server, results[0][1]) == list(range(1, NUM_STEPS + 1))
    for weights, _, _ in results:
        assert torch.equal(weights, weights_without_agent)


@pytest.mark.parametrize("is_up_at_first", [False, True], ids=["never up", "down at the end"])
def test_c30_what_was_not_delivered_waits_in_the_spool(is_up_at_first, tmp_path, weights_without_agent):
    with ServerProcess(tmp_path) as server:
        if not is_up_at_first:
            server.kill()

        def go() -> None:
            _wait_for_step(tmp_path, 150)
            server.kill()

        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(go)
            results = run_ranks(2, _train, str(tmp_path), server.url, server.ingest_token, timeout=120)
            going.result()
        assert results[0][2] > 0, "rank 0 must say that something waits"
        server.restart()
        _deliver(tmp_path, server)
        assert _loss_steps(server, results[0][1]) == list(range(1, NUM_STEPS + 1))
    assert torch.equal(results[0][0], weights_without_agent)


def _deliver(folder: Path, server: ServerProcess) -> None:
    """Run `gradwire sync` as a person would."""
    import os
    import subprocess
    import sys

    from server_process import environment

    command = [sys.executable, "-m", "gradwire", "sync", str(folder / "spool")]
    done = subprocess.run(command, env={**os.environ, **environment(server)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
