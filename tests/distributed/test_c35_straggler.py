"""C35: waiting for a slow rank is not communication, and nobody is told to compress because of it."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gradwire_compression.plain as plain
import httpx
import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, tell
from gradwire_protocol import routes
from gradwire_protocol.records import StepWindow
from server_process import ServerProcess
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

COMPUTE_SECONDS, LATE_SECONDS = 0.01, 0.1
# What the gradient of the layer takes at 5 MB/s.
LINK_SECONDS = 256 * 256 * 4 / 5e6
# When the late rank begins to be in time, and when training ends; the test says so while it is running.
SWITCH, STOP = "switch", "stop"
# Should the test never say so.
MOST_STEPS = 800


class _SlowWork:
    """An all-reduce over a slow link: its future is complete later."""

    def __init__(self, work: Any) -> None:
        self._work = work

    def get_future(self) -> Any:
        def travel(future: Any) -> Any:
            time.sleep(LINK_SECONDS)
            return future.value()

        return self._work.get_future().then(travel)


def _train(rank: int, world_size: int, folder: str, url: str, token: str) -> tuple[int, list[StepWindow]]:
    ddp = DistributedDataParallel(nn.Linear(256, 256))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    session = attach(ddp, optimizer, folder, server=url, token=token, run="straggler")
    windows: list[StepWindow] = []
    report = session._recorder._on_window
    session._recorder._on_window = lambda window: (windows.append(window), report(window))
    start_exact = plain.start_exact
    step, switch = 0, 10**9
    while step < min(MOST_STEPS, _told(folder, STOP)):
        step, switch = step + 1, _told(folder, SWITCH)
        if step == switch:
            plain.start_exact = lambda *args: _SlowWork(start_exact(*args))
        loss = ddp(torch.ones(2, 256)).square().mean()
        time.sleep(COMPUTE_SECONDS)
        if rank == 1 and step < switch:
            time.sleep(LATE_SECONDS)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step(loss=loss, samples=2)
        if rank == 0:
            tell(folder, "progress", step)
    session.close()
    return switch, windows


def _told(folder: str, name: str) -> int:
    """Return the step that was told under a name; far away while none was."""
    path = Path(folder, name)
    return int(path.read_text()) if path.exists() else 10**9


def _soon(folder: str) -> int:
    """Return a step that no rank has reached: ranks are never more than one apart."""
    return _told(folder, "progress") + 10 if Path(folder, "progress").exists() else 1


def _until(read: Callable[[], dict[str, Any] | None]) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while (found := read()) is None:
        assert time.monotonic() < deadline, "it did not show in time"
        time.sleep(0.2)
    return found


def _watch(client: httpx.Client, run: str) -> None:
    with contextlib.suppress(httpx.HTTPError), client.stream("GET", routes.RUN_LIVE.format(run=run)) as stream:
        for _ in stream.iter_raw():
            pass


def _follow(server: ServerProcess, folder: str) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Watch the run; return what it shows while a rank is late and while the link is slow, and its page then."""
    client = server.operator()

    def view() -> dict[str, Any]:
        found: dict[str, Any] = client.get(routes.RUN.format(run=run)).json()
        return found

    try:
        browser = server.browser()
        run = _until(lambda: next(iter(client.get(routes.RUNS).json()["runs"]), None))["id"]
        # As a browser does; ends with the server.
        threading.Thread(target=_watch, args=(server.operator(), run), daemon=True).start()
        late = _until(lambda: found if (found := view())["waiting"]["straggler"] is not None else None)
        page = browser.get(f"/runs/{run}").text
        tell(folder, SWITCH, _soon(folder))
        before = late["exposed_share"]["value"]
        slow = _until(lambda: found if (found := view())["exposed_share"]["value"] > before + 0.1 else None)
        tell(folder, STOP, _soon(folder))
        return late, slow, page
    finally:
        if not Path(folder, STOP).exists():
            tell(folder, STOP, _soon(folder))


def test_c35_late_rank_is_named_and_a_slow_link_is_communication(tmp_path):
    folder = str(tmp_path)
    with ServerProcess(tmp_path) as server, ThreadPoolExecutor(1) as pool:
        following = pool.submit(_follow, server, folder)
        ranks = run_ranks(2, _train, folder, server.url, server.ingest_token, timeout=150)
        late, slow, page = following.result()
    # Phase 1: rank 1 is named with its host, and the waiting is not transfer.
    host = socket.gethostname()
    assert (late["waiting"]["straggler"]["rank"], late["waiting"]["straggler"]["host"]) == (1, host)
    assert late["waiting"]["straggler"]["others_wait_share"] > 0.5
    # Summed over both ranks, of which one waits.
    assert late["waiting"]["share"]["value"] > 0.25
    assert late["exposed_share"]["value"] < 0.2
    assert late["summary"]["verdict"]["kind"] in ("cannot_say", "not_worth_it")
    assert f"Look at process 1 on {host}" in page
    assert "Try int8" not in page
    # Phase 2: what travels slowly is communication, on both ranks.
    assert slow["exposed_share"]["value"] > late["exposed_share"]["value"] + 0.1
    switch = ranks[0][0]
    assert switch == ranks[1][0]
    for rank, (_, windows) in enumerate(ranks):
        shares = [
            sum(window.seconds.exposed_communication - (window.seconds.straggler_wait or 0.0) for window in part)
            / sum(window.seconds.step for window in part)
            for part in (
                [window for window in windows if window.last_step < switch],
                [window for window in windows if window.first_step > switch],
            )
        ]
        assert shares[1] > shares[0] + 0.2, rank
        for window in windows:
            seconds = window.seconds
            assert seconds.forward + seconds.backward + seconds.exposed_communication <= 1.05 * seconds.step
            assert seconds.overlapped >= 0
