"""The server is killed again and again: what was acknowledged is there once, what was asked for is not lost."""

import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from agent_stream import AgentStream, losses, plan, window
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.messages import SetRequest
from gradwire_protocol.records import Record
from server_process import ServerProcess
from stored import directive_states, kinds, rows

NUM_KILLS = 10


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path) as process:
        yield process


class Sender(threading.Thread):
    """Sends batch after batch and, as an agent's spool does, each again until it is acknowledged."""

    def __init__(self, stream: AgentStream) -> None:
        super().__init__(daemon=True)
        self.stream = stream
        self.num_acknowledged = 0
        self.num_repeated = 0
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            step = self.num_acknowledged
            self._send(self.stream.facts if step == 0 else window(step, 1), losses(step, [float(step)]))
            self.num_acknowledged += 1

    def _send(self, *records: Record) -> None:
        batch = self.stream.batch(*records)
        while True:
            try:
                answer = self.stream.post(batch)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 200:
                assert answer.json()["number"] == batch.number
                self.stream.number += 1
                return
            assert answer is None or answer.status_code == 503, answer.text
            self.num_repeated += 1
            time.sleep(0.02)


@pytest.mark.timeout(300)
def test_every_acknowledged_batch_is_present_once_after_ten_kills(own: ServerProcess) -> None:
    senders = [Sender(AgentStream(own.agent())) for _ in range(2)]
    for sender in senders:
        sender.start()
    chance = random.Random(7)
    for _ in range(NUM_KILLS):
        time.sleep(chance.uniform(0.05, 0.6))
        own.kill()
        own.start()
    for sender in senders:
        sender.stop.set()
        sender.join(60)
        assert not sender.is_alive()
    own.terminate()
    connection = sqlite3.connect(own.database_path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()
    for sender in senders:
        query = "SELECT step FROM points WHERE run = ? ORDER BY step"
        steps = [row["step"] for row in rows(own.database_path, query, sender.stream.run)]
        assert steps == list(range(sender.num_acknowledged))
        query = "SELECT first_step FROM step_windows WHERE run = ? AND level = 0 ORDER BY first_step"
        steps = [row["first_step"] for row in rows(own.database_path, query, sender.stream.run)]
        assert steps == list(range(1, sender.num_acknowledged))
        query = "SELECT sum(num_windows) AS n FROM step_windows WHERE run = ? AND level = 1"
        assert rows(own.database_path, query, sender.stream.run)[0]["n"] == sender.num_acknowledged - 1
        assert kinds(own.database_path, sender.stream.run) == ["attempt_started"]
    assert sum(sender.num_repeated for sender in senders) > 0


def test_waiting_change_survives_the_server_and_is_run_once(own: ServerProcess) -> None:
    stream = AgentStream(own.agent())
    stream.begin(window(0))
    asked = own.operator().post(
        routes.DIRECTIVES.format(run=stream.run), content=encode(SetRequest(plan=plan("int8"), revision=0))
    )
    assert asked.status_code == 202
    own.kill()
    own.start()
    stream.client = own.agent()
    directive = stream.wait_directive()
    assert directive is not None
    assert directive.revision == 1
    # The server dies between delivery and result; the agent, which knows the change, is not given it again.
    own.kill()
    own.start()
    stream.client = own.agent()
    assert stream.wait_directive(after=1, wait=0.1) is None
    switched = stream.switched(directive, step=30)
    stream.report(switched)
    own.kill()
    own.start()
    stream.client = own.agent()
    # The answer to the report was lost, so it comes again, and then in the stream.
    stream.report(switched)
    stream.send(switched)
    assert stream.wait_directive(after=0, wait=0.1) is None
    assert directive_states(own.database_path, stream.run) == ["applied"]
    assert kinds(own.database_path, stream.run) == ["attempt_started", "requested", "delivered", "switched"]


def test_run_is_not_lost_because_the_server_was_down(own: ServerProcess) -> None:
    stream = AgentStream(own.agent())
    stream.begin(window(0))
    own.kill()
    connection = sqlite3.connect(own.database_path)
    connection.execute("UPDATE runs SET last_seen_at = last_seen_at - 3600")
    connection.commit()
    connection.close()
    own.start()
    body = encode(SetRequest(plan=plan("int8"), revision=0))
    assert own.operator().post(routes.DIRECTIVES.format(run=stream.run), content=body).status_code == 202
