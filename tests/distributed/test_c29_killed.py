"""C29: a killed rank ends the run on the page within three heartbeats, and the others by their own error."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
from distributed.jobs import await_status, finish, loss_points, start
from gradwire_protocol import limits, routes
from gradwire_protocol.coding import encode
from gradwire_protocol.messages import SetRequest
from gradwire_protocol.plans import PlanSpec
from server_inside import inside_server
from server_process import ServerProcess, environment, server

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

# The killed rank dies inside backward, where the other one waits for its gradients.
KILLED = """
name, victims = sys.argv[1:]

class Deadly(torch.autograd.Function):
    @staticmethod
    def forward(context, data):
        return data.clone()

    @staticmethod
    def backward(context, gradient):
        os.kill(os.getpid(), signal.SIGKILL)

store = os.environ["STORE"]
rank = 1 if os.fork() == 0 else 0
model, optimizer = begin(rank, 2, store)
session = gradwire.attach(model, optimizer=optimizer, run=name)
for step in range(1, 31):
    time.sleep(0.1)
    loss = model(torch.ones(2, 8)).square().mean()
    if step == 15 and (victims == "all" or rank == 1):
        loss = Deadly.apply(loss)
    loss.backward()
    optimizer.step()
    session.step(loss=loss)
"""


def _set_int8(client, run: str):
    body = encode(SetRequest(plan=PlanSpec(codec="int8"), revision=0))
    return client.post(routes.DIRECTIVES.format(run=run), content=body)


def test_c29_killed_rank_ends_the_run_by_gloos_own_error(server: ServerProcess, tmp_path, monkeypatch):
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    status, _, complained = finish(start(server, tmp_path, KILLED, "one killed", "1"), 60.0)
    assert status == 1
    last = [line for line in complained.splitlines() if "Error: " in line][-1]
    assert "RuntimeError" in last
    assert "gloo" in last
    assert "by peer" in last
    run = await_status(server, "one killed", "failed", limits.LOST_AFTER_SECONDS)
    assert run["step"] in (14, 15)
    assert [step for step, _, _ in loss_points(server, run["id"])] == list(range(1, run["step"] + 1))
    events = server.operator().get(routes.EVENTS.format(run=run["id"])).json()["events"]
    assert any("rank 1 went away" in event["message"] for event in events)
    answer = _set_int8(server.operator(), run["id"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "closed")
    assert "failed" in answer.json()["error"]["message"]


def test_c29_killed_job_is_lost_after_three_heartbeats_with_all_that_was_acknowledged(tmp_path, monkeypatch):
    monkeypatch.setenv("STORE", str(tmp_path / "store"))
    with inside_server(tmp_path) as server:
        reachable = SimpleNamespace(url=server.url, ingest_token=server.token("ingest"))
        job = start(reachable, tmp_path, KILLED, "all killed", "all")
        operator = server.client(server.token("operator"))
        reachable.operator = lambda: operator
        status, _, complained = finish(job, 60.0)
        assert (status, complained) == (-signal.SIGKILL, "")
        run = await_status(reachable, "all killed", "running")
        server.advance(limits.LOST_AFTER_SECONDS + 1)
        run = await_status(reachable, "all killed", "lost")
        assert 0 <= run["step"] <= 15
        answer = _set_int8(operator, run["id"])
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "closed")
        assert "rollback --local" in answer.json()["error"]["message"]
        command = [sys.executable, "-m", "gradwire", "sync", str(tmp_path / "s")]
        subprocess.run(command, env=environment(reachable), check=True, timeout=60, stdout=subprocess.DEVNULL)
        # Only what its last second measured died with the process.
        steps = [step for step, _, _ in loss_points(reachable, run["id"])]
        assert steps == list(range(1, len(steps) + 1))
        assert 1 <= len(steps) <= 15
        # Late data are no sign of life.
        assert await_status(reachable, "all killed", "lost")["step"] >= 1
