"""C21: a change reaches ranks of very different pace at the same step, asked for through the real server."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import torch.distributed as dist
from distributed.hooked import CODECS
from distributed.ranks import run_ranks
from distributed.training import (
    attach,
    batch,
    changes,
    flat,
    make_model,
    pulse_with_every_exchange,
    random_delay,
    train_step,
)
from gradwire_protocol import routes
from server_process import ServerProcess, server  # noqa: F401 (a fixture)

pytestmark = pytest.mark.distributed

NUM_TOGGLES = 200


def _train(rank: int, world_size: int, folder: str, url: str, token: str, cut_rank: int) -> tuple[Any, ...]:
    # Every rank is a node of its own, so that each has its own link to the server.
    os.environ["GROUP_RANK"] = str(rank)
    # More changes than one in half a second are applied.
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    reachable = url if rank != cut_rank else "http://127.0.0.1:9"
    session = attach(ddp, optimizer, folder, server=reachable, token=token, run="toggled")
    delay = random_delay(rank, 0.3 if rank == 1 else 0.0)
    stop = torch.zeros(1)
    history: list[tuple[int, str]] = []
    while not stop.item():
        delay()
        time.sleep(0.005)
        loss = train_step(ddp, optimizer, batch(rank, session.current_step))
        history.append((session.current_step, session.codec))
        session.step(loss=loss, samples=16)
        if rank == 0:
            Path(folder, "run").write_text(session.run_id)
            stop[0] = Path(folder, "stop").exists()
        dist.broadcast(stop, 0)
    session.close()
    return changes(history), flat(ddp)


def _wait_for(condition: Any, what: str, seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.05)
    return value


def _view(client: httpx.Client, run: str) -> dict[str, Any] | None:
    answer = client.get(routes.RUN.format(run=run))
    return answer.json() if answer.status_code == 200 else None


def _events(client: httpx.Client, run: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next": None}
    while not events or page["next"] is not None:
        before = {} if page["next"] is None else {"before": page["next"]}
        page = client.get(routes.EVENTS.format(run=run), params=before).json()
        events += page["events"]
    return events


def _toggle(client: httpx.Client, folder: Path) -> str:
    """Ask for 200 changes at random times, then for none; returns the run's id once that is applied."""
    chance = random.Random(21)
    run = _wait_for(lambda: Path(folder, "run").exists() and Path(folder, "run").read_text(), "run")
    revision = _wait_for(lambda: _view(client, run), "run on the server")["revision"]
    for _ in range(NUM_TOGGLES):
        time.sleep(chance.random() * 0.15)
        codec = chance.choice(["none", *CODECS])
        body = {"plan": {"codec": codec, "min_elements": 64}, "revision": revision}
        answer = client.post(routes.DIRECTIVES.format(run=run), json=body)
        assert answer.status_code in (200, 202), answer.text
        revision = answer.json()["directive"]["revision"]
    client.post(routes.ROLLBACK.format(run=run), json={"reason": "the end of the trial"})

    def is_uncompressed() -> bool:
        view = _view(client, run)
        change = view and view["last_change"]
        return bool(change and view["plan"]["codec"] == "none" and change["state"] in ("applied", "superseded"))

    _wait_for(is_uncompressed, "final rollback")
    return run


@pytest.mark.parametrize(("world_size", "cut_rank"), [(2, -1), (3, 1)], ids=["two ranks", "three, one cut off"])
def test_c21_every_toggle_is_applied_at_one_step(world_size, cut_rank, server: ServerProcess, tmp_path):  # noqa: F811
    client = server.operator()

    def drive() -> str:
        try:
            return _toggle(client, tmp_path)
        finally:
            Path(tmp_path, "stop").touch()

    with ThreadPoolExecutor(1) as pool:
        driving = pool.submit(drive)
        arguments = (str(tmp_path), server.url, server.ingest_token, cut_rank)
        results = run_ranks(world_size, _train, *arguments, timeout=120)
        run = driving.result()
    first_changes, first_parameters = results[0]
    assert len(first_changes) > 20
    for other_changes, parameters in results:
        assert other_changes == first_changes
        assert torch.equal(parameters, first_parameters)

    switched = [event for event in _events(client, run) if event["kind"] == "switched"]
    assert len(switched) > 20
    # The log names the very steps at which the ranks changed; a change to the same codec is no change of codec.
    logged = {event["step"] for event in switched}
    assert {step for step, _ in first_changes[1:]} <= logged
    view = _view(client, run)
    assert view is not None
    assert view["plan"]["codec"] == "none"
    assert view["num_ranks_confirmed"] == world_size
