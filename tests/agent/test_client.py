"""The API client against a real server, and against what is none."""

import threading
from pathlib import Path

import pytest
from agent_stream import AgentStream, plan, window
from gradwire.client import Client
from gradwire.errors import AnswerError, SettingError, UnreachableError
from gradwire_protocol.messages import RollbackRequest, SetRequest
from scripted_server import Reply, ScriptedServer, unused_port, wait_until
from server_process import ServerProcess, server
from toy_training import ToyTraining

__all__ = ["server"]


def test_runs_are_listed_newest_first_over_pages(server: ServerProcess) -> None:
    made = []
    for _ in range(5):
        stream = AgentStream(server.agent(), run_name="paged")
        stream.begin(window(1))
        made.append(stream.run)
    with Client(server.url, server.operator_token) as client:
        listed = [run.id for run in client.runs(page_size=2) if run.name == "paged"]
    assert listed == sorted(made, reverse=True)


def test_set_and_rollback_are_followed_to_their_end(server: ServerProcess, tmp_path: Path) -> None:
    with (
        ToyTraining(tmp_path, server.url, server.ingest_token) as training,
        Client(server.url, server.operator_token) as client,
    ):
        wait_until(lambda: any(run.id == training.run for run in client.runs()))
        page = client.run(training.run)
        answer = client.set_plan(training.run, SetRequest(plan=plan("int8"), revision=page.revision))
        assert answer.directive is not None
        change = client.wait_for(training.run, answer.directive, 20.0)
        assert change is not None
        assert (change.state, change.codec, change.num_ranks_confirmed) == ("applied", "int8", 1)
        assert training.codec == "int8"
        answer = client.roll_back(training.run, RollbackRequest(reason="drill"))
        assert answer.directive is not None
        change = client.wait_for(training.run, answer.directive, 20.0)
        assert change is not None
        assert (change.state, change.kind, change.reason) == ("applied", "rollback", "drill")
        assert training.codec == "none"
        assert client.roll_back(training.run, RollbackRequest()).directive is None


def test_refusal_names_the_rank(server: ServerProcess, tmp_path: Path) -> None:
    with (
        ToyTraining(tmp_path, server.url, server.ingest_token, refuse="no memory") as training,
        Client(server.url, server.operator_token) as client,
    ):
        wait_until(lambda: any(run.id == training.run for run in client.runs()))
        answer = client.set_plan(training.run, SetRequest(plan=plan("int8"), revision=0))
        assert answer.directive is not None
        change = client.wait_for(training.run, answer.directive, 20.0)
        assert change is not None
        assert change.state == "rejected"
        assert [(one.rank, one.host, one.reason) for one in change.refusals] == [(0, "node-00", "no memory")]


def test_change_that_nobody_answers_stays_open(server: ServerProcess) -> None:
    stream = AgentStream(server.agent())
    stream.begin(window(1))
    with Client(server.url, server.operator_token) as client:
        answer = client.set_plan(stream.run, SetRequest(plan=plan("int8"), revision=0))
        assert answer.directive is not None
        change = client.wait_for(stream.run, answer.directive, 0.3)
        assert change is not None
        assert change.state in ("requested", "delivered")


def test_of_two_who_set_at_once_one_wins_and_the_other_is_told(server: ServerProcess) -> None:
    stream = AgentStream(server.agent())
    stream.begin(window(1))
    outcomes: list[str] = []
    barrier = threading.Barrier(2)

    def ask() -> None:
        with Client(server.url, server.operator_token) as client:
            barrier.wait()
            try:
                client.set_plan(stream.run, SetRequest(plan=plan("int8"), revision=0))
                outcomes.append("won")
            except AnswerError as error:
                current = error.detail.current
                by = "nobody" if current is None else current.author
                outcomes.append(f"{error.status} {error.detail.code} {error.detail.wanted} by {by}")

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["409 conflict 1 by operator", "won"]


def test_errors_of_the_server_arrive_whole(server: ServerProcess) -> None:
    with Client(server.url, server.operator_token) as client, pytest.raises(AnswerError) as caught:
        client.run("01900000-0000-7000-8000-000000000000")
    assert (caught.value.status, caught.value.detail.code) == (404, "not_found")
    with Client(server.url, server.ingest_token) as client, pytest.raises(AnswerError) as caught:
        list(client.runs())
    assert caught.value.status in (401, 403)
    assert server.ingest_token not in str(caught.value)


@pytest.mark.parametrize("reply", [Reply(200, b"<html>"), Reply(200, b'{"runs":3}')])
def test_what_is_not_a_gradwire_server_is_said_to_be_none(reply: Reply) -> None:
    with (
        ScriptedServer(reply) as scripted,
        Client(scripted.url, None) as client,
        pytest.raises(UnreachableError, match="does not speak"),
    ):
        list(client.runs())


def test_redirect_is_an_error_that_names_the_right_address() -> None:
    reply = Reply(308, headers={"location": "https://gradwire.example/api/v1/runs"})
    with ScriptedServer(reply) as scripted, Client(scripted.url, "t") as client:
        with pytest.raises(AnswerError, match="https://gradwire"):
            list(client.runs())
        assert len(scripted.heard) == 1


def test_server_that_is_not_there_is_one_sentence() -> None:
    url = f"http://127.0.0.1:{unused_port()}"
    with Client(url, None) as client, pytest.raises(UnreachableError, match=f"{url} does not answer"):
        list(client.runs())


@pytest.mark.parametrize(
    "url", ["host:8420", "http://::1:8123", "http://u:p@host", "http://h/?q=1", "ftp://h", "http://"]
)
def test_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingError):
        Client(url, None)


def test_secrets_are_never_quoted() -> None:
    with pytest.raises(SettingError) as caught:
        Client("http://ann:hunter2@host:99999", None)
    assert "hunter2" not in str(caught.value)
    with pytest.raises(SettingError) as caught:
        Client("http://host", "secret\nthing")
    assert "secret" not in str(caught.value)


def test_end_of_line_behind_a_token_does_not_matter(server: ServerProcess) -> None:
    with Client(server.url, f"{server.operator_token}\n") as client:
        list(client.runs())


def test_server_below_a_path_is_reached_with_and_without_a_slash() -> None:
    with ScriptedServer(Reply(200, b'{"runs":[],"next":null}')) as scripted:
        for slash in ("", "/"):
            with Client(f"{scripted.url}/tools/watch{slash}", None) as client:
                assert list(client.runs()) == []
        assert {heard.path.partition("?")[0] for heard in scripted.heard} == {"/tools/watch/api/v1/runs"}
