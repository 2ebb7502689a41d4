"""Directives arrive once and at once; results are posted until the server has them; closing never takes long."""

import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from agent_stream import AgentStream, plan, window
from gradwire.control import Control
from gradwire_protocol import routes
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import Directive, DirectiveAnswer, ResultReport
from gradwire_protocol.records import Switched
from scripted_server import Heard, Reply, ScriptedServer, refusal, unused_port, wait_until
from server_process import ServerProcess, server
from toy_training import ToyTraining

__all__ = ["server"]

NOTHING = Reply(body=msgspec.json.encode(DirectiveAnswer()))


def directive(revision: int) -> Directive:
    return Directive(revision=revision, model="model", kind="set", plan=plan("int8"), epoch=0, author="ann")


def answer(revision: int) -> Reply:
    return Reply(body=msgspec.json.encode(DirectiveAnswer(directive=directive(revision))))


def switched(epoch: int, revision: int | None = None) -> Switched:
    return Switched(
        at=time.time(), step=5, epoch=epoch, plan=plan("int8"), num_ranks=2, cause="directive", revision=revision
    )


class Heeding:
    """A control whose directives are kept."""

    def __init__(self, url: str, run: str = "", attempt: str = "") -> None:
        self.heard: list[Directive] = []
        self.run, self.attempt = run or new_id(), attempt or new_id()
        self.control = Control(
            server=url,
            token="ingest-secret",
            run=self.run,
            attempt=self.attempt,
            model="model",
            on_directive=self.heard.append,
        )

    def post(self, epoch: int) -> None:
        self.control.post_result(ResultReport(attempt=self.attempt, model="model", result=switched(epoch)))

    def __enter__(self) -> "Heeding":
        return self

    def __exit__(self, *_error: object) -> None:
        self.control.close()


def polls(scripted: ScriptedServer) -> list[Heard]:
    return [heard for heard in scripted.heard if heard.method == "GET"]


@pytest.fixture
def forever() -> Iterator[ScriptedServer]:
    """A server that accepts and never answers."""
    with ScriptedServer(Reply(delay_seconds=math.inf)) as scripted:
        yield scripted


def test_each_directive_is_handed_over_once() -> None:
    with (
        ScriptedServer(answer(1), answer(1), answer(3), answer(2), Reply(delay_seconds=math.inf)) as scripted,
        Heeding(scripted.url) as heeding,
    ):
        wait_until(lambda: len(polls(scripted)) == 5)
        assert [one.revision for one in heeding.heard] == [1, 3]
        queries = [heard.path.partition("?")[2] for heard in polls(scripted)]
        assert ["after=0" in queries[0], "after=1" in queries[1], "after=3" in queries[3]] == [True] * 3
        assert f"attempt={heeding.attempt}" in queries[0]
        assert "model=model" in queries[0]
        assert polls(scripted)[0].path.startswith(routes.AGENT_DIRECTIVE.format(run=heeding.run))


def test_server_that_answers_nothing_at_once_is_not_hammered() -> None:
    with ScriptedServer(NOTHING) as scripted, Heeding(scripted.url):
        began = time.monotonic()
        wait_until(lambda: len(polls(scripted)) >= 3)
        assert time.monotonic() - began >= 1.9


@pytest.mark.parametrize(
    "trouble", [Reply(500), refusal(404, "not_found"), Reply(200, b"hello"), refusal(409, "closed")]
)
def test_trouble_is_survived(trouble: Reply) -> None:
    with ScriptedServer(trouble, trouble, answer(4), NOTHING) as scripted, Heeding(scripted.url) as heeding:
        wait_until(lambda: [one.revision for one in heeding.heard] == [4])


def test_error_in_the_session_does_not_end_listening(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[int] = []

    def fail_first(given: Directive) -> None:
        heard.append(given.revision)
        if len(heard) == 1:
            raise ValueError("no")

    with ScriptedServer(answer(1), answer(2), NOTHING) as scripted:
        control = Control(
            server=scripted.url, token=None, run=new_id(), attempt=new_id(), model="m", on_directive=fail_first
        )
        wait_until(lambda: heard == [1, 2])
        control.close()
    assert "control thread met an error" in caplog.text


def test_result_is_posted_again_until_the_server_has_it_in_order() -> None:
    bodies: list[int] = []

    def store(heard: Heard) -> Reply:
        if heard.method == "GET":
            return Reply(delay_seconds=math.inf)
        bodies.append(msgspec.json.decode(heard.body, type=ResultReport).result.epoch)
        return Reply(503) if len(bodies) <= 2 else Reply(200, b"{}")

    with ScriptedServer(store) as scripted, Heeding(scripted.url) as heeding:
        heeding.post(1)
        heeding.post(2)
        wait_until(lambda: bodies == [1, 1, 1, 2])


def test_result_the_server_will_never_take_does_not_block_later_ones() -> None:
    bodies: list[int] = []

    def store(heard: Heard) -> Reply:
        if heard.method == "GET":
            return Reply(delay_seconds=math.inf)
        bodies.append(msgspec.json.decode(heard.body, type=ResultReport).result.epoch)
        return refusal(422, "malformed") if bodies[-1] == 1 else Reply(200, b"{}")

    with ScriptedServer(store) as scripted, Heeding(scripted.url) as heeding:
        heeding.post(1)
        heeding.post(2)
        wait_until(lambda: bodies == [1, 2])


def test_posting_never_blocks_however_long_the_server_is_away() -> None:
    with Heeding(f"http://127.0.0.1:{unused_port()}") as heeding:
        for epoch in range(10_000):
            heeding.post(epoch)


def test_closing_is_quick_while_a_request_hangs(forever: ScriptedServer) -> None:
    heeding = Heeding(forever.url)
    heeding.post(1)
    forever.wait_for(2)
    before = {thread.name for thread in threading.enumerate()}
    assert {"gradwire-directives", "gradwire-results"} <= before
    began = time.monotonic()
    heeding.control.close()
    assert time.monotonic() - began < 5.0
    wait_until(lambda: not {"gradwire-directives", "gradwire-results"} & {t.name for t in threading.enumerate()})


def test_result_posted_right_before_closing_still_goes_out() -> None:
    with ScriptedServer(Reply(200, b"{}")) as scripted:
        heeding = Heeding(scripted.url)
        heeding.post(1)
        heeding.control.close()
        assert [heard.method for heard in scripted.heard].count("POST") == 1


def test_forked_child_posts_nothing_and_closes_nothing() -> None:
    with ScriptedServer(lambda heard: NOTHING if heard.method == "GET" else Reply(200, b"{}")) as scripted:
        heeding = Heeding(scripted.url)
        child = os.fork()
        if child == 0:
            heeding.post(99)
            heeding.control.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        heeding.post(1)
        heeding.control.close()
        posts = [heard for heard in scripted.heard if heard.method == "POST"]
        assert [msgspec.json.decode(heard.body, type=ResultReport).result.epoch for heard in posts] == [1]


def test_directive_reaches_a_training_and_its_result_counts_once(server: ServerProcess, tmp_path: Path) -> None:
    operator = server.operator()
    with ToyTraining(tmp_path, server.url, server.ingest_token) as training:
        path = routes.RUN.format(run=training.run)
        wait_until(lambda: operator.get(path).status_code == 200)
        asked = operator.post(routes.DIRECTIVES.format(run=training.run), json=request("int8", revision=0))
        assert asked.status_code == 202, asked.text
        wait_until(lambda: operator.get(path).json()["last_change"]["state"] == "applied")
        change = operator.get(path).json()["last_change"]
        assert change["num_ranks_confirmed"] == 1
        assert change["seconds"] < 10.0
        summary = training.close()
        assert summary.num_undelivered == 0
    events = operator.get(routes.EVENTS.format(run=training.run)).json()["events"]
    assert [event["kind"] for event in events].count("switched") == 1
    assert [one.revision for one in training.directives] == [1]


def test_old_directives_are_not_handed_to_a_new_attempt(server: ServerProcess, tmp_path: Path) -> None:
    operator = server.operator()
    old = AgentStream(server.agent())
    old.begin(window(1))
    asked = operator.post(routes.DIRECTIVES.format(run=old.run), json=request("int8", revision=0))
    assert asked.status_code == 202, asked.text
    with ToyTraining(tmp_path, server.url, server.ingest_token, run=old.run) as training:
        path = routes.RUN.format(run=old.run)
        wait_until(lambda: operator.get(path).json()["attempt_number"] == 2)
        revision = operator.get(path).json()["revision"]
        asked = operator.post(routes.DIRECTIVES.format(run=old.run), json=request("bf16", revision=revision))
        assert asked.status_code == 202, asked.text
        wait_until(lambda: training.directives != [])
        assert [one.plan.codec for one in training.directives] == ["bf16"]


def request(codec: str, *, revision: int) -> dict[str, object]:
    return {"plan": {"codec": codec, "parameters": {}}, "revision": revision}
