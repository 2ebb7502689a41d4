"""C31 (a): a server that takes two seconds for each answer, or never answers, costs the steps nothing."""

import math
import time
from pathlib import Path

import pytest
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, train_step
from scripted_server import Heard, Reply, ScriptedServer, accepted

pytestmark = pytest.mark.distributed

NUM_STEPS = 300


def _slowly(heard: Heard) -> Reply:
    if heard.method == "GET":
        return Reply(404)
    reply = accepted(heard)
    reply.delay_seconds = 2.0
    return reply


def _train(rank: int, world_size: int, folder: str, url: str | None) -> tuple[float, float, int]:
    """Return the seconds that steps and closing took, and how many measurements are left."""
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token="t") if url else None
    began = time.monotonic()
    for step in range(1, NUM_STEPS + 1):
        time.sleep(0.01)
        loss = train_step(ddp, optimizer, batch(rank, step))
        if session is not None:
            session.step(loss=loss)
    trained = time.monotonic()
    summary = session.close() if session is not None else None
    left = summary.num_undelivered if summary is not None else 0
    return trained - began, time.monotonic() - trained, left


@pytest.fixture(scope="module")
def seconds_without_agent(tmp_path_factory: pytest.TempPathFactory) -> float:
    return float(run_ranks(2, _train, str(tmp_path_factory.mktemp("plain")), None)[0][0])


@pytest.mark.parametrize("answers", [True, False])
def test_c31_no_step_waits_for_the_server(answers: bool, seconds_without_agent: float, tmp_path: Path) -> None:
    with ScriptedServer(_slowly if answers else Reply(delay_seconds=math.inf)) as server:
        (steps, closing, left), _ = run_ranks(2, _train, str(tmp_path), server.url)
        num_posts = sum(heard.method == "POST" for heard in server.heard)
    # A single answer that was waited for would cost two seconds, and there is one for about each second.
    assert steps < seconds_without_agent + 2.0
    assert num_posts >= 1
    # Its own bound is five seconds; a busy machine may be late.
    assert closing < 8.0
    assert answers or left > 0
