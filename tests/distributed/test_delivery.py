"""Delivery between real processes: whatever dies or lies on the way, the server holds everything once."""

import json
import os
import random
import socket
import sqlite3
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_stream import attempt_started, losses, window
from gradwire.cli import main
from gradwire.transport import place
from gradwire.transport.batches import encode_batch, encode_record
from gradwire.transport.node import open_reporter
from gradwire.transport.operator import find_nodes
from gradwire.transport.reporter import Reporter
from gradwire.transport.spool import SealedBatch
from gradwire_protocol import routes
from gradwire_protocol.identity import new_id
from gradwire_protocol.records import AttemptEnded, NodeFacts
from scripted_server import unused_port, wait_until
from server_process import ServerProcess

pytestmark = pytest.mark.distributed

TESTS = str(Path(__file__).parents[1])

# One node's first rank: a window and its loss every few milliseconds, each sent at once, until a line on stdin.
SENDER = textwrap.dedent(
    """
    import json, sys, threading, time
    from pathlib import Path
    from agent_stream import attempt_started, window
    from gradwire.transport.node import open_reporter
    from gradwire_protocol.records import AttemptEnded, NodeFacts
    options = json.loads(sys.argv[1])
    node = options["node"]
    reporter = open_reporter(
        run=options["run"], attempt=options["attempt"], model="model", node=node, rank=node, local_ranks=(node,),
        started=attempt_started(node=NodeFacts(host=f"node-{node:02d}", ranks=(node,))),
        spool_folder=Path(options["spool"]), server=options["server"], token=options["token"], on_rollback=print,
    )
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    step = 0
    while not stop.wait(0.02):
        step += 1
        reporter.report(window(step, num_steps=1, num_rank_steps=1), urgent=True)
        reporter.report_loss([step], [float(step)], [1.0])
    summary = reporter.close(AttemptEnded(at=time.time(), last_step=step, status="finished"), 60.0)
    print(json.dumps([step, summary.num_delivered, summary.num_undelivered, summary.num_dropped]))
    """
)


class Sender:
    """A node in a process of its own."""

    def __init__(self, node: int, run: str, attempt: str, spool: Path, server: ServerProcess) -> None:
        self.node = node
        options = {
            "node": node,
            "run": run,
            "attempt": attempt,
            "spool": str(spool),
            "server": server.url,
            "token": server.ingest_token,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SENDER, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": TESTS},
        )

    def finish(self) -> list[int]:
        """Stop it and return steps reported, and measurements delivered, undelivered and dropped."""
        said, _ = self.process.communicate(b"\n", timeout=120.0)
        assert self.process.returncode == 0
        numbers: list[int] = json.loads(said)
        return numbers


def rows(server: ServerProcess, query: str, *parameters: object) -> list[tuple[object, ...]]:
    """Ask the database file itself, whether its server lives or not."""
    connection = sqlite3.connect(server.database_path)
    try:
        return connection.execute(query, parameters).fetchall()
    finally:
        connection.close()


def stored_windows(server: ServerProcess, run: str, node: int) -> list[int]:
    query = "SELECT first_step FROM step_windows WHERE run = ? AND node = ? AND level = 0 ORDER BY first_step"
    return [int(str(step)) for (step,) in rows(server, query, run, node)]


def stored_points(server: ServerProcess, run: str, node: int) -> list[tuple[object, ...]]:
    query = "SELECT step, value FROM points WHERE run = ? AND node = ? ORDER BY step"
    return rows(server, query, run, node)


def test_server_killed_ten_times_holds_every_acknowledged_window_once(tmp_path: Path) -> None:
    run, attempt, generator = new_id(), new_id(), random.Random(7)
    with ServerProcess(tmp_path) as server:
        senders = [Sender(node, run, attempt, tmp_path / "spool", server) for node in (0, 1)]
        wait_until(lambda: len(find_nodes([tmp_path / "spool"])) == 2)
        for _ in range(10):
            time.sleep(generator.uniform(0.2, 1.0))
            states = [node.status for node in find_nodes([tmp_path / "spool"])]
            num_delivered = {status.node: status.num_delivered for status in states}
            server.kill()
            for sender in senders:
                num_stored = len(stored_windows(server, run, sender.node))
                num_stored += len(stored_points(server, run, sender.node))
                # Besides windows and losses the stream holds its beginning.
                assert num_stored >= num_delivered[sender.node] - 1
            server.restart()
        for sender in senders:
            num_steps, num_sent, num_undelivered, num_dropped = sender.finish()
            assert (num_undelivered, num_dropped) == (0, 0)
            assert num_sent == 2 * num_steps + 2
            assert num_steps > 100
            assert stored_windows(server, run, sender.node) == list(range(1, num_steps + 1))
            expected = [(step, float(step)) for step in range(1, num_steps + 1)]
            assert stored_points(server, run, sender.node) == expected
        server.terminate()
        assert rows(server, "PRAGMA integrity_check") == [("ok",)]
        assert rows(server, "SELECT count(*) FROM runs") == [(1,)]
        assert rows(server, "SELECT status FROM attempts") == [("finished",)]
    assert place.find_streams(tmp_path / "spool") == []


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


class Node:
    """One reporter in this process."""

    def __init__(self, spool: Path, url: str, token: str) -> None:
        self.spool = spool
        self.run, self.attempt = new_id(), new_id()
        self.facts = attempt_started(node=NodeFacts(host="node-00", ranks=(0,)), world_size=1)
        self.reporter: Reporter = open_reporter(
            run=self.run,
            attempt=self.attempt,
            model="model",
            node=0,
            rank=0,
            local_ranks=(0,),
            started=self.facts,
            spool_folder=spool,
            server=url,
            token=token,
            on_rollback=print,
        )

    @property
    def num_waiting(self) -> int:
        return sum(node.status.num_waiting for node in find_nodes([self.spool]))

    def close(self, timeout_seconds: float = 30.0) -> tuple[int, int, float]:
        """Return measurements delivered and undelivered, and how long closing took."""
        began = time.monotonic()
        ended = AttemptEnded(at=time.time(), last_step=1, status="finished")
        summary = self.reporter.close(ended, timeout_seconds)
        return summary.num_delivered, summary.num_undelivered, time.monotonic() - began


class LyingProxy:
    """Forwards each request and its answer, but resets the connection instead of answering every third POST."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.rpartition("/")[2].partition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self.num_posts = 0
        self.num_resets = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream) as upstream:
            while (request := _read_message(client)) is not None:
                upstream.sendall(request)
                answer = _read_message(upstream)
                if answer is None or self._is_to_be_reset(request):
                    # With a linger of zero, closing sends a reset.
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return
                client.sendall(answer)

    def _is_to_be_reset(self, request: bytes) -> bool:
        with self._lock:
            self.num_posts += request.startswith(b"POST")
            is_third = request.startswith(b"POST") and self.num_posts % 3 == 0
            self.num_resets += is_third
            return is_third

    def close(self) -> None:
        self._listener.close()


def _read_message(connection: socket.socket) -> bytes | None:
    """Read one HTTP message with a content-length; None at the end of the connection."""
    data = b""
    try:
        while b"\r\n\r\n" not in data:
            chunk = connection.recv(65536)
            if not chunk:
                return None
            data += chunk
        head, _, body = data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        lengths = [line.partition(b":")[2] for line in lines if line.startswith(b"content-length:")]
        missing = int(lengths[0]) - len(body) if lengths else 0
        while missing > 0:
            chunk = connection.recv(65536)
            if not chunk:
                return None
            data += chunk
            missing -= len(chunk)
    except OSError:
        return None
    return data


def test_c32_lost_replies_double_nothing(server: ServerProcess, tmp_path: Path) -> None:
    proxy = LyingProxy(server.url)
    node = Node(tmp_path, proxy.url, server.ingest_token)
    for number in range(100):
        node.reporter.report(losses(20 * number + 1, [float(number)] * 20), urgent=True)
        wait_until(lambda: node.num_waiting == 0)
    num_delivered, num_undelivered, _ = node.close()
    proxy.close()
    assert (num_delivered, num_undelivered) == (2002, 0)
    assert proxy.num_resets >= 30
    expected = [(step, float((step - 1) // 20)) for step in range(1, 2001)]
    assert stored_points(server, node.run, 0) == expected


def test_c32_replayed_batch_is_stored_once_and_the_first_version_stays(
    server: ServerProcess, tmp_path: Path
) -> None:
    run, attempt = new_id(), new_id()
    facts = place.StreamFacts(run=run, attempt=attempt, model="model", node=0, started=attempt_started())
    records = (encode_record(facts.started), encode_record(losses(1, [0.5] * 20)))
    body = encode_batch(facts, SealedBatch(1, 0, 21, records))
    with server.agent() as agent:
        for _ in range(5):
            answer = agent.post(routes.BATCHES, content=body)
            assert (answer.status_code, answer.json()["number"]) == (200, 1)
        changed = encode_batch(facts, SealedBatch(1, 0, 21, (records[0], encode_record(losses(1, [9.0] * 20)))))
        assert agent.post(routes.BATCHES, content=changed).status_code == 200
    assert stored_points(server, run, 0) == [(step, 0.5) for step in range(1, 21)]


def report_while(node: Node, changes: dict[int, Callable[[], object]]) -> None:
    """Report 200 windows of 20 ms steps, and do something at some of them."""
    pending = []
    for step in range(1, 201):
        if step in changes:
            change = threading.Thread(target=changes[step])
            change.start()
            pending.append(change)
        node.reporter.report(window(step, num_steps=1))
        time.sleep(0.02)
    for change in pending:
        change.join()


def test_c30_server_that_comes_and_goes_has_every_window_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as process:
        process.kill()
        node = Node(tmp_path / "spool", process.url, process.ingest_token)
        lock = threading.Lock()

        def up() -> None:
            with lock:
                process.restart()

        def down() -> None:
            with lock:
                process.kill()

        report_while(node, {50: up, 100: down, 150: up})
        num_delivered, num_undelivered, _ = node.close()
        assert (num_delivered, num_undelivered) == (202, 0)
        assert stored_windows(process, node.run, 0) == list(range(1, 201))


def test_c30_server_that_is_never_there_ends_in_time_and_keeps_everything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    node = Node(tmp_path / "spool", f"http://127.0.0.1:{unused_port()}", "t")
    report_while(node, {})
    num_delivered, num_undelivered, seconds = node.close(10.0)
    assert (num_delivered, num_undelivered) == (0, 202)
    assert seconds < 10.0
    assert str(place.find_streams(tmp_path / "spool")[0][0]) in caplog.text


def test_c30_server_down_at_the_end_gets_the_rest_by_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with ServerProcess(tmp_path) as process:
        node = Node(tmp_path / "spool", process.url, process.ingest_token)
        report_while(node, {150: process.kill})
        _, num_undelivered, seconds = node.close(10.0)
        assert 0 < num_undelivered <= 202
        assert seconds < 10.0
        process.restart()
        monkeypatch.setenv("GRADWIRE_TOKEN", process.ingest_token)
        assert main(["sync", str(tmp_path / "spool")]) == 0
        assert "nothing is left" in capsys.readouterr().out
        assert stored_windows(process, node.run, 0) == list(range(1, 201))
        assert main(["sync", str(tmp_path / "spool")]) == 0
        assert stored_windows(process, node.run, 0) == list(range(1, 201))
