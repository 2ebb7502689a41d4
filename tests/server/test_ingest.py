import sqlite3

import pytest
from agent_stream import AgentStream, losses, window
from gradwire_protocol import limits, routes
from server_process import ServerProcess, server  # noqa: F401


@pytest.fixture
def stream(server: ServerProcess) -> AgentStream:  # noqa: F811
    return AgentStream(server.agent())


def count(server: ServerProcess, table: str, run: str) -> int:  # noqa: F811
    with sqlite3.connect(f"file:{server.database_path}?mode=ro", uri=True) as connection:
        where = " AND level = 0" if table == "step_windows" else ""
        return int(connection.execute(f"SELECT count(*) FROM {table} WHERE run = ?{where}", (run,)).fetchone()[0])


def test_batch_sent_five_times_is_stored_once(server: ServerProcess, stream: AgentStream) -> None:  # noqa: F811
    stream.begin()
    batch = stream.batch(window(0), losses(0, [3.0, 2.5]))
    answers = [stream.post(batch) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert {answer.json()["number"] for answer in answers} == {2}
    assert count(server, "step_windows", stream.run) == 1
    assert count(server, "points", stream.run) == 2


def test_body_over_limit_is_413_with_limit(stream: AgentStream) -> None:
    answer = stream.post(b"[" * (limits.MAX_BODY_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["limit"] == limits.MAX_BODY_BYTES
    assert answer.request.url.path == routes.BATCHES
