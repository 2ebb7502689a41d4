import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from agent_stream import AgentStream, plan, window
from gradwire_protocol import limits, routes
from gradwire_protocol.coding import encode
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import SetRequest
from gradwire_protocol.records import Event
from gradwire_server.live import routes as live_routes
from server_inside import inside_server
from server_process import ServerProcess


class Messages:
    """Reads server-sent events, heartbeats apart."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self.num_heartbeats = 0
        self._lines = answer.iter_lines()

    def next(self) -> dict[str, Any]:
        message: dict[str, Any] = {}
        for line in self._lines:
            name, _, value = line.partition(": ")
            if line == "" and "event" in message:
                return message
            if line == ": heartbeat":
                self.num_heartbeats += 1
            elif name in ("id", "event", "data", "retry"):
                message[name] = json.loads(value) if name == "data" else value
        raise AssertionError("the stream has ended")

    def until(self, kind: str) -> dict[str, Any]:
        while (message := self.next())["event"] != kind:
            pass
        return message


@contextmanager
def listen(client: httpx.Client, run: str | None, *, after: int | None = None) -> Iterator[Messages]:
    path = routes.LIVE if run is None else routes.RUN_LIVE.format(run=run)
    headers = {} if after is None else {"Last-Event-ID": str(after)}
    with client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        yield Messages(answer)


def note(text: str) -> Event:
    return Event(at=0.0, step=1, kind="note", message=text)


def test_stream_tells_events_and_new_numbers(server: ServerProcess, stream: AgentStream) -> None:
    with listen(server.operator(), stream.run) as messages:
        assert messages.next()["event"] == "changed"
        stream.send(window(0))
        assert messages.next() == {"event": "changed", "data": {"run": stream.run}}
        stream.send(note("hello"))
        event = messages.until("event")
        assert (event["id"], event["data"]["number"], event["data"]["message"]) == ("2", 2, "hello")


def test_stream_resumes_after_the_event_that_the_browser_has(server: ServerProcess, stream: AgentStream) -> None:
    stream.send(*[note(f"line {number}") for number in range(2, 9)])
    with listen(server.operator(), stream.run, after=5) as messages:
        assert [messages.next()["id"] for _ in range(3)] == ["6", "7", "8"]
        stream.send(note("line 9"))
        assert messages.until("event")["data"]["message"] == "line 9"


def test_long_absence_is_told_whole_and_once(server: ServerProcess, stream: AgentStream) -> None:
    num_events = 2 * live_routes.PAGE_EVENTS + 3
    lines = [note(str(number)) for number in range(2, num_events + 1)]
    for start in range(0, len(lines), limits.MAX_BATCH_RECORDS):
        stream.send(*lines[start : start + limits.MAX_BATCH_RECORDS])
    with listen(server.operator(), stream.run, after=0) as messages:
        assert [int(messages.next()["id"]) for _ in range(num_events)] == list(range(1, num_events + 1))
        assert messages.next()["event"] == "changed"


@pytest.mark.parametrize("after", ["nonsense", "-1", "9" * 30, "999"])
def test_impossible_last_id_is_taken_for_now(server: ServerProcess, stream: AgentStream, after: str) -> None:
    headers = {"Last-Event-ID": after}
    with server.operator().stream("GET", routes.RUN_LIVE.format(run=stream.run), headers=headers) as answer:
        messages = Messages(answer)
        assert messages.next()["event"] == "changed"
        stream.send(note("hello"))
        assert messages.until("event")["id"] == "2"


def test_headers_keep_proxies_from_holding_messages_back(server: ServerProcess, stream: AgentStream) -> None:
    with listen(server.operator(), stream.run) as messages:
        headers = messages.answer.headers
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    assert "no-cache" in headers["cache-control"]
    assert "content-encoding" not in headers


def test_run_is_watched_while_its_stream_is_open(server: ServerProcess, stream: AgentStream) -> None:
    assert stream.send(window(0)) == limits.IDLE_INTERVAL_SECONDS
    with listen(server.operator(), stream.run) as messages:
        messages.next()
        assert stream.send(window(10)) == limits.WATCHED_INTERVAL_SECONDS
    deadline = time.monotonic() + 20
    first_step = 20
    while stream.send(window(first_step)) != limits.IDLE_INTERVAL_SECONDS:
        assert time.monotonic() < deadline
        first_step += 10


def test_stream_of_all_runs_names_the_run(server: ServerProcess, stream: AgentStream) -> None:
    with listen(server.operator(), None) as messages:
        assert messages.next()["data"] == {"run": None}
        stream.send(window(0))
        assert messages.next() == {"event": "changed", "data": {"run": stream.run}}
        other = AgentStream(server.agent())
        other.begin()
        assert messages.next()["data"] == {"run": other.run}


def test_stream_of_an_unknown_run_is_not_found(server: ServerProcess) -> None:
    answer = server.operator().get(routes.RUN_LIVE.format(run=new_id()))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_stream_needs_somebody_who_may_look(server: ServerProcess, stream: AgentStream) -> None:
    for path in (routes.LIVE, routes.RUN_LIVE.format(run=stream.run)):
        assert server.anonymous().get(path).status_code == 401
        assert server.agent().get(path).status_code == 403


def test_quiet_stream_has_a_heartbeat_and_clients_that_leave_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_routes, "HEARTBEAT_SECONDS", 0.05)
    with inside_server(tmp_path) as server:
        stream = AgentStream(server.client(server.token("ingest")))
        stream.begin()
        operator = server.client(server.token("operator"))
        hub = server.services.hub
        for _ in range(50):
            with listen(operator, stream.run) as messages:
                messages.next()
                assert hub.num_watchers(stream.run) >= 1
        with listen(operator, None):
            pass
        with listen(operator, stream.run) as messages:
            messages.next()
            time.sleep(0.3)
            stream.send(note("after the quiet"))
            assert messages.until("event")["data"]["message"] == "after the quiet"
            assert messages.num_heartbeats >= 2
        deadline = time.monotonic() + 20
        while hub.num_subscriptions() or hub.num_watchers(stream.run):
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_open_streams_hold_no_connection_to_the_database(tmp_path: Path) -> None:
    with inside_server(tmp_path) as server:
        stream = AgentStream(server.client(server.token("ingest")))
        stream.begin()
        operators = [server.client(server.token("operator")) for _ in range(20)]
        open_streams = [listen(operator, stream.run) for operator in operators]
        for one in open_streams:
            one.__enter__().next()
        pool = server.services.database._read_engine.pool
        deadline = time.monotonic() + 10
        while pool.checkedout():  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for one in open_streams:
            one.__exit__(None, None, None)


def test_change_wakes_the_stream(server: ServerProcess, stream: AgentStream) -> None:
    with listen(server.operator(), stream.run) as messages:
        messages.next()
        body = encode(SetRequest(plan=plan("int8"), revision=0))
        server.operator().post(routes.DIRECTIVES.format(run=stream.run), content=body)
        assert messages.until("event")["data"]["kind"] == "requested"
        directive = stream.wait_directive(wait=0)
        assert directive is not None
        assert messages.until("event")["data"]["kind"] == "delivered"
        stream.report(stream.switched(directive, step=9))
        event = messages.until("event")["data"]
        assert (event["kind"], event["step"], event["data"]["num_ranks"]) == ("switched", 9, 2)
