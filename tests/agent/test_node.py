"""A node's ranks in processes of their own: one stream, counted drops, silence in forked children."""

import logging
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from agent_stream import losses, window
from gradwire.errors import SettingError, SpoolError
from gradwire.transport import place
from gradwire.transport.node import NodeReporter
from gradwire.transport.operator import find_nodes
from gradwire.transport.reporter import DeliverySummary
from gradwire_protocol.errors import MalformedError
from gradwire_protocol.records import (
    AttemptEnded,
    AttemptStarted,
    Event,
    Points,
    Refused,
)
from one_node import Node, close_all, ended, opened, spooled, switched, windows_of
from scripted_server import Reply, ScriptedServer, accepted, refusal, unused_port, wait_until


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "spool")


@pytest.fixture
def alone(tmp_path: Path) -> Node:
    """A node of one rank."""
    return Node(tmp_path / "spool", (0,))


def test_ranks_in_processes_become_one_stream(node: Node) -> None:
    first = node.open(0)
    sibling = node.start_sibling(1, 50)
    for step in range(1, 51):
        first.report(window(step, num_steps=1, num_rank_steps=1))
        first.report_loss([step], [4.0], [3.0])
    assert sibling.stdout is not None
    assert sibling.stdout.readline() == b"reported\n"
    assert sibling.stdin is not None
    sibling.stdin.write(b"\n")
    sibling.stdin.close()
    summary = first.close(ended(last_step=50), 30.0)
    assert sibling.stdout.readline() == b"100 0\n"
    assert sibling.wait() == 0
    sibling.stdout.close()
    records = node.spooled()
    assert summary.spool_path == node.folder
    assert summary.num_dropped == 0
    assert summary.num_undelivered == 1 + 50 + 50 + 1
    assert isinstance(records[0], AttemptStarted)
    assert isinstance(records[-1], AttemptEnded)
    windows = windows_of(records)
    assert sorted(one.first_step for one in windows) == list(range(1, 51))
    assert {one.num_rank_steps for one in windows} == {2}
    values = {
        step: value
        for record in records
        if isinstance(record, Points)
        for step, value in zip(record.steps, record.values, strict=True)
    }
    assert values == dict.fromkeys(range(1, 51), (4.0 * 3 + 1.0 * 1) / 4)


def test_order_of_starting_does_not_matter(node: Node) -> None:
    second = node.open(1)
    second.report(window(1, num_rank_steps=10))
    first = node.open(0)
    first.report(window(1, num_rank_steps=10))
    close_all((first, None), (second, None))
    (merged,) = windows_of(node.spooled())
    assert merged.num_rank_steps == 20


def test_other_records_pass_unchanged_and_in_order(alone: Node) -> None:
    reporter = alone.open()
    event = Event(at=1.5, step=3, kind="note", message="hello", rank=0)
    refused = Refused(at=1.5, step=4, epoch=0, revision=2, refusals=())
    points = losses(1, [0.5, 0.25])
    switch = switched("int8", step=5)
    for record in (event, points, switch, refused):
        reporter.report(record)
    reporter.close(ended(), 5.0)
    passed = alone.spooled()[1:-1]
    assert passed == [event, points, switch, refused]


def test_worst_end_of_the_ranks_is_the_end_of_the_node(node: Node) -> None:
    first, second = node.open(0), node.open(1)
    close_all((first, ended(last_step=20)), (second, ended("failed", 18, "ValueError: no")))
    last = node.spooled()[-1]
    assert isinstance(last, AttemptEnded)
    assert (last.status, last.exception, last.last_step) == ("failed", "ValueError: no", 20)


def test_rank_that_fails_is_told_before_it_may_go(tmp_path: Path) -> None:
    with ScriptedServer(accepted) as server:
        node = Node(tmp_path / "spool", server=server.url)
        first, second = node.open(0), node.open(1)
        second.close(ended("failed", 18, "ValueError"), 20.0)
        # The first rank is still there, and may be killed now.
        told = [record for heard in server.heard for record in heard.batch.records]
        failed = [record for record in told if isinstance(record, AttemptEnded)]
        assert [(record.status, record.exception) for record in failed] == [("failed", "ValueError")]
        first.close(ended("failed", 20, "RuntimeError"), 20.0)
    last = server.heard[-1].batch.records[-1]
    assert isinstance(last, AttemptEnded)
    assert (last.status, last.exception, last.last_step) == ("failed", "ValueError", 20)


def test_rank_that_fails_goes_though_nobody_can_be_told(tmp_path: Path) -> None:
    with ScriptedServer(Reply(delay_seconds=math.inf)) as server:
        node = Node(tmp_path / "spool", server=server.url)
        first, second = node.open(0), node.open(1)
        server.wait_for(1)
        began = time.monotonic()
        second.close(ended("failed", 18, "ValueError"), 60.0)
        assert time.monotonic() - began < 30.0
        first.close(None, 1.0)
    assert any(isinstance(record, AttemptEnded) for record in node.spooled())


def test_sibling_that_is_killed_is_named_and_holds_nobody_up(node: Node) -> None:
    first = node.open(0)
    sibling = node.start_sibling(1, 5)
    assert sibling.stdout is not None
    assert sibling.stdin is not None
    assert sibling.stdout.readline() == b"reported\n"
    wait_until(lambda: find_nodes([node.spool])[0].status.last_step == 5)
    sibling.send_signal(signal.SIGKILL)
    sibling.wait()
    sibling.stdout.close()
    sibling.stdin.close()
    began = time.monotonic()
    first.close(ended(), 60.0)
    assert time.monotonic() - began < 30.0
    events = [record for record in node.spooled() if isinstance(record, Event)]
    assert [event.rank for event in events] == [1]
    assert "rank 1 went away" in events[0].message


def test_sibling_without_a_first_rank_ends_in_time_and_counts(node: Node) -> None:
    second = node.open(1)
    second.report(window(1))
    second.report_loss([1, 2], [1.0, 1.0], [1.0, 1.0])
    began = time.monotonic()
    summary = second.close(ended(), 0.5)
    assert time.monotonic() - began < 10.0
    assert (summary.num_delivered, summary.num_dropped) == (0, 3)


def test_delivered_run_leaves_nothing_behind(tmp_path: Path) -> None:
    with ScriptedServer(accepted) as server:
        node = Node(tmp_path / "spool", (0,), server.url)
        reporter = node.open()
        for step in range(1, 11):
            reporter.report(window(step))
        summary = reporter.close(ended(), 20.0)
        assert summary == DeliverySummary(num_delivered=12)
        assert list(node.spool.iterdir()) == []


def test_server_that_is_never_there_costs_little_and_loses_nothing(tmp_path: Path) -> None:
    node = Node(tmp_path / "spool", (0,), f"http://127.0.0.1:{unused_port()}")
    reporter = node.open()
    for step in range(1, 201):
        reporter.report(window(step))
    began = time.monotonic()
    summary = reporter.close(ended(), 10.0)
    assert time.monotonic() - began < 20.0
    assert summary.num_undelivered == 202
    assert len(windows_of(node.spooled())) == 200


def test_new_attempt_delivers_what_the_killed_one_left(tmp_path: Path) -> None:
    with ScriptedServer(accepted) as server:
        node = Node(tmp_path / "spool", (0,), server.url)
        left = Node(node.spool, (0,), f"http://127.0.0.1:{unused_port()}")
        left.run = node.run
        reporter = left.open()
        reporter.report(window(7))
        reporter.close(None, 1.0)
        facts = place.read_facts(left.folder)
        assert facts is not None
        place.write_facts(left.folder, facts.__replace__(server=server.url), None)
        with opened(node):
            wait_until(lambda: not left.folder.exists())
        stored = {heard.batch.attempt: heard.batch for heard in server.heard}
        assert windows_of(list(stored[left.attempt].records))[0].first_step == 7


def test_unfit_records_are_counted_and_do_not_spoil_others(alone: Node, caplog: pytest.LogCaptureFixture) -> None:
    reporter = alone.open()
    bad = window(1)
    bad.seconds.step = float("nan")
    reporter.report(bad)
    reporter.report(window(5, num_steps=-3))
    reporter.report(Points(name="bad\nname", steps=(1, 2), values=(1.0, 2.0)))
    reporter.report(Points(name="ok", steps=(1, 2), values=(1.0, float("nan"))))
    summary = reporter.close(ended(), 5.0)
    assert summary.num_dropped == 4
    (kept,) = [record for record in alone.spooled() if isinstance(record, Points)]
    assert (kept.values, kept.kinds) == ((1.0, None), {"1": "nan"})
    assert caplog.text.count("StepWindow record is not acceptable") == 1


def test_records_over_the_limits_are_split_or_shortened(alone: Node) -> None:
    reporter = alone.open()
    reporter.report(losses(1, [0.5] * 2500))
    reporter.report(Event(at=1.0, step=1, kind="note", message="m" * 5000))
    reporter.close(ended("failed", exception="e" * 5000), 5.0)
    records = alone.spooled()
    assert [len(record.steps) for record in records if isinstance(record, Points)] == [1000, 1000, 500]
    assert [len(record.message) for record in records if isinstance(record, Event)] == [2000]
    assert isinstance(records[-1], AttemptEnded)
    assert len(records[-1].exception) == 2000


def test_full_spool_is_counted_exactly_and_told_when_it_takes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    busy = refusal(503, "unavailable")
    with ScriptedServer(busy) as server:
        node = Node(tmp_path / "spool", (0,), server.url)
        with opened(node, cap_bytes=64 * 1024) as reporter:
            for step in range(1, 301):
                reporter.report(window(step))
            wait_until(lambda: find_nodes([node.spool])[0].status.last_step == 309)
            num_dropped = find_nodes([node.spool])[0].status.num_dropped
            server.then(accepted)
            wait_until(lambda: find_nodes([node.spool])[0].status.num_waiting == 0)
            reporter.report(window(301))
            wait_until(lambda: find_nodes([node.spool])[0].status.last_step == 310)
        batches = [heard.batch for heard in server.heard if heard.batch.number > 0]
    records = [record for batch in {batch.number: batch for batch in batches}.values() for record in batch.records]
    steps = [one.first_step for one in windows_of(records)]
    assert steps == [*range(1, 301 - num_dropped), 301], "the newest go, exactly as many as were counted"
    assert 0 < num_dropped < 300
    assert batches[-1].num_dropped == num_dropped
    (told,) = [record for record in records if isinstance(record, Event)]
    assert (told.kind, told.data) == ("data_dropped", {"num_dropped": num_dropped})
    assert caplog.text.count("dropped and counted") == 1


def test_report_never_blocks_and_never_raises_after_close(alone: Node) -> None:
    reporter = alone.open()
    first = reporter.close(ended(), 5.0)
    reporter.report(window(1))
    reporter.report_loss([1], [1.0], [1.0])
    reporter.announce(switched("none", step=1))
    assert reporter.close(ended(), 5.0) is first


def test_forked_child_sends_nothing_and_closes_nothing(alone: Node) -> None:
    reporter = alone.open()
    reporter.report(window(1))
    for _ in range(3):
        child = os.fork()
        if child == 0:
            reporter.report(window(99))
            reporter.report_loss([99], [1.0], [1.0])
            is_silent = reporter.close(ended("failed"), 5.0) == DeliverySummary()
            os._exit(0 if is_silent else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert alone.socket.exists()
    reporter.report(window(2))
    reporter.close(ended(), 5.0)
    records = alone.spooled()
    assert [one.first_step for one in windows_of(records)] == [1, 2]
    assert sum(isinstance(record, AttemptEnded) for record in records) == 1


def test_spool_that_cannot_be_written_moves_to_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    node = Node(tmp_path / "file" / "spool", (0, 1))
    with caplog.at_level(logging.WARNING):
        first, second = node.open(0), node.open(1)
    assert "instead" in caplog.text
    first.report(window(1, num_rank_steps=10))
    second.report(window(1, num_rank_steps=10))
    summary, _ = close_all((first, None), (second, None))
    assert summary.spool_path is not None
    assert summary.spool_path.is_relative_to(place.temporary_root())
    node.spool = place.temporary_root() / "spool"
    assert windows_of(node.spooled())[0].num_rank_steps == 20


def test_temporary_folder_of_somebody_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / f"gradwire-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"gradwire-{os.getuid()}").chmod(0o777)
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match="file/spool"):
        Node(tmp_path / "file" / "spool", (0,)).open()


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/../../b", "C:\\x", "%2e%2e/", "a?b#c"])
def test_names_never_become_paths(tmp_path: Path, name: str) -> None:
    node = Node(tmp_path / "spool", (0,))
    node.facts = {"run_name": name}
    reporter = node.open(model=name)
    reporter.close(ended(), 5.0)
    found = place.find_streams(tmp_path)
    assert [(facts.started.run_name, facts.model) for _, facts in found] == [(name, name)]
    assert {path.parent for path in tmp_path.rglob("*.segment")} == {found[0][0]}
    assert found[0][0].parent == node.spool / node.run


def test_models_of_one_process_have_streams_of_their_own(tmp_path: Path) -> None:
    node = Node(tmp_path / "spool", (0,))
    with opened(node, model="a") as one, opened(node, model="b") as two:
        one.report(window(1))
        two.report(window(2))
    names = sorted(facts.model for _, facts in place.find_streams(node.spool))
    assert names == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"run": "../../x"}, MalformedError),
        ({"attempt": "x"}, MalformedError),
        ({"server": "http://::1:80"}, SettingError),
    ],
)
def test_wrong_arguments_are_refused_at_once(
    alone: Node, changes: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error):
        alone.open(**changes)


def test_token_over_plain_http_to_another_machine_is_warned_of_without_the_token(
    alone: Node, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(alone, server=f"http://0.0.0.0:{unused_port()}"):
        assert "unencrypted" in caplog.text
        assert "ingest-secret" not in caplog.text


def test_first_rank_is_the_smallest(tmp_path: Path) -> None:
    node = Node(tmp_path / "spool", (4, 5))
    with opened(node, rank=4) as first:
        assert isinstance(first, NodeReporter)


def test_second_interrupt_ends_at_once_while_the_server_hangs(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import atexit, sys, time
        from pathlib import Path
        from agent_stream import attempt_started
        from gradwire.transport.node import open_reporter
        from gradwire_protocol.identity import new_id
        reporter = open_reporter(
            run=new_id(), attempt=new_id(), model="model", node=0, rank=0, local_ranks=(0,),
            started=attempt_started(), spool_folder=Path(sys.argv[1]), server=sys.argv[2], token=None,
            on_rollback=print,
        )
        atexit.register(reporter.close, None, 600.0)
        print("closing", flush=True)
        reporter.close(None, 600.0)
        """
    )
    with ScriptedServer(Reply(delay_seconds=math.inf)) as server:
        training = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), server.url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        server.wait_for(1)
        assert training.stdout is not None
        assert training.stdout.readline() == b"closing\n"
        training.send_signal(signal.SIGINT)
        _, complained = training.communicate(timeout=60.0)
    assert training.returncode == -signal.SIGINT
    assert complained.rstrip().endswith(b"KeyboardInterrupt")


def test_c31_memory_stays_bounded_however_long_the_server_is_busy(tmp_path: Path) -> None:
    """C31 (c): half a million values against a server that always answers 503."""
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from agent_stream import attempt_started
        from gradwire.transport.node import open_reporter
        from gradwire_protocol.identity import new_id

        def resident_bytes():
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        reporter = open_reporter(
            run=new_id(), attempt=new_id(), model="model", node=0, rank=0, local_ranks=(0,),
            started=attempt_started(), spool_folder=Path(sys.argv[1]), server=sys.argv[2], token=None,
            on_rollback=print, cap_bytes=8 * 1024 * 1024,
        )
        before, most = resident_bytes(), 0
        for step in range(500_000):
            reporter.report_loss([step], [1.0], [1.0])
            if step % 1000 == 0:
                most = max(most, resident_bytes())
        summary = reporter.close(None, 20.0)
        print(max(most, resident_bytes()) - before, summary.num_undelivered, summary.num_dropped)
        """
    )
    with ScriptedServer(refusal(503, "unavailable")) as server:
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), server.url],
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
            check=True,
        )
    grown_bytes, num_undelivered, num_dropped = map(int, done.stdout.split())
    assert grown_bytes < 64 * 1024 * 1024
    # The beginning, and what told of drops, are in the spool besides the losses.
    (folder, _), *_ = place.find_streams(tmp_path)
    records = spooled(folder)
    num_values = sum(len(record.steps) for record in records if isinstance(record, Points))
    num_others = sum(not isinstance(record, Points) for record in records)
    assert num_undelivered == num_values + num_others
    assert num_values + num_dropped == 500_000
