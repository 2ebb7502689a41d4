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


def _train(rank: int, world_size: int, folder: str, url: str) -> tuple[float, float, int]:
    """Return the seconds that the longest step and closing took, and how many measurements are left."""
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, server=url, token="t")
    longest = 0.0
    for step in range(1, NUM_STEPS + 1):
        time.sleep(0.01)
        began = time.monotonic()
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
        longest = max(longest, time.monotonic() - began)
    trained = time.monotonic()
    summary = session.close()
    return longest, time.monotonic() - trained, summary.num_undelivered


@pytest.mark.parametrize("answers", [True, False])
def test_c31_no_step_waits_for_the_server(answers: bool, tmp_path: Path) -> None:
    with ScriptedServer(_slowly if answers else Reply(delay_seconds=math.inf)) as server:
        results = run_ranks(2, _train, str(tmp_path), server.url)
        num_posts = sum(heard.method == "POST" for heard in server.heard)
    assert num_posts >= 1
    # A step that waited for an answer would take two seconds, on the rank that sends or on its peer.
    assert max(longest for longest, *_ in results) < 2.0
    _, closing, left = results[0]
    # Its own bound is five seconds; a busy machine may be late.
    assert closing < 8.0
    assert answers or left > 0
