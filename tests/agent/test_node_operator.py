"""The local operator on a node's socket: status and rollback without a server, and nobody else."""

import os
import pwd
import socket
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest
from agent_stream import window
from gradwire.errors import AnswerError, UnreachableError
from gradwire.transport.local import Hello, Inlet, LossPart, PlanPage, TensorPlan, pack
from gradwire.transport.operator import ask_plan, find_nodes, roll_back
from gradwire_protocol.records import (
    Refused,
    Switched,
)
from one_node import Node, close_all, opened, switched, windows_of
from scripted_server import wait_until


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "spool")


@pytest.fixture
def alone(tmp_path: Path) -> Node:
    """A node of one rank."""
    return Node(tmp_path / "spool", (0,))


def test_status_tells_what_the_node_does(alone: Node) -> None:
    with opened(alone) as reporter:
        reporter.report(switched("int8", step=40))
        reporter.report(window(50))
        (found,) = find_nodes([alone.spool])
        status = found.status
        assert (status.run, status.run_name, status.attempt) == (alone.run, "toy", alone.attempt)
        assert (status.codec, status.since_step, status.last_step) == ("int8", 40, 59)
        assert status.ranks == (0,)
        assert status.trouble == "no server is set"
        assert status.num_waiting >= 1
        assert status.process == os.getpid()


def test_rollback_over_the_socket_waits_for_the_switch(alone: Node) -> None:
    with opened(alone) as reporter:
        reporter.report(switched("int8", step=40))
        wait_until(lambda: find_nodes([alone.spool])[0].status.codec == "int8")

        def train() -> None:
            wait_until(lambda: alone.rollbacks == ["loss spike"])
            reporter.report(Refused(at=1.0, step=44, epoch=1, revision=9, refusals=()))
            reporter.report(switched("int8", step=45))
            reporter.report(switched("none", step=46, is_rollback=True))

        training = threading.Thread(target=train)
        training.start()
        result = roll_back(alone.socket, "loss spike", 20.0)
        training.join()
        assert result.codec_before == "int8"
        assert result.switched is not None
        assert result.switched.step == 46


def test_rollback_hears_an_announced_switch_which_is_not_sent_to_the_server(alone: Node) -> None:
    with opened(alone) as reporter:

        def train() -> None:
            wait_until(lambda: alone.rollbacks != [])
            reporter.announce(switched("none", step=46, is_rollback=True))

        training = threading.Thread(target=train)
        training.start()
        result = roll_back(alone.socket, "", 20.0)
        training.join()
        assert result.switched is not None
    assert not any(isinstance(record, Switched) for record in alone.spooled())


def test_rollback_of_a_training_that_stands_still_is_not_called_done(alone: Node) -> None:
    with opened(alone):
        assert roll_back(alone.socket, "", 0.3).switched is None
        assert alone.rollbacks == [""]


def test_rollback_of_a_run_that_is_only_measured_is_denied(alone: Node) -> None:
    alone.facts = {"is_steered": False}
    with opened(alone), pytest.raises(AnswerError, match="measured only"):
        roll_back(alone.socket, "", 5.0)
    assert alone.rollbacks == []


def test_error_in_the_session_does_not_end_the_node(alone: Node, caplog: pytest.LogCaptureFixture) -> None:
    def fail(reason: str) -> None:
        raise ValueError(reason)

    with opened(alone, on_rollback=fail) as reporter:
        with pytest.raises(UnreachableError):
            roll_back(alone.socket, "x", 0.5)
        reporter.report(window(3))
        wait_until(lambda: find_nodes([alone.spool])[0].status.last_step == 12)
    assert "met an error and goes on" in caplog.text


def _plan(num_tensors: int) -> PlanPage:
    tensors = tuple(
        TensorPlan(
            name=f"layers.{index}.{'long' * 30}.weight",
            shape=(4096, 1024),
            dtype="bfloat16",
            codec="exact",
            reason="reason " * 20,
            exact_bytes=8_388_608,
            sent_bytes=8_388_608,
        )
        for index in range(num_tensors)
    )
    return PlanPage(
        codec="int8",
        tensors=tensors,
        num_tensors=num_tensors,
        num_buckets=3,
        num_spared=1,
        exact_seconds=0.1,
        lossy_seconds=0.2,
        memory_bytes=10,
        codec_memory_bytes={"int8": 10},
    )


@pytest.mark.parametrize("num_tensors", [1, 2000])
def test_plan_of_any_size_comes_whole(alone: Node, num_tensors: int) -> None:
    with opened(alone, on_plan=lambda: _plan(num_tensors)):
        assert ask_plan(alone.socket) == _plan(num_tensors)


def test_plan_that_cannot_be_shown_is_denied_in_words(alone: Node) -> None:
    def fail() -> PlanPage:
        raise RuntimeError("dictionary changed size during iteration")

    with opened(alone), pytest.raises(AnswerError, match="has no plan to show"):
        ask_plan(alone.socket)
    with opened(Node(alone.spool.parent / "other", (0,)), on_plan=fail) as reporter:
        (found,) = find_nodes([alone.spool.parent / "other"])
        with pytest.raises(AnswerError, match="ask again"):
            ask_plan(found.socket)
        reporter.report(window(1))


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\x03abc", b"\xff" * 100, b""])
def test_nonsense_on_the_socket_harms_nobody(alone: Node, sent: bytes) -> None:
    with opened(alone) as reporter:
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.connect(str(alone.socket))
            stranger.sendall(sent)
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(alone.socket))
            reporter.report(window(1))
            wait_until(lambda: find_nodes([alone.spool])[0].status.last_step == 10)


def test_socket_belongs_to_this_user_alone(alone: Node) -> None:
    with opened(alone):
        mode = alone.socket.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_other_user_is_turned_away_even_where_the_file_mode_lets_them_in() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root, opened(alone := Node(Path(root), (0,))):
        path = alone.socket
        path.chmod(0o666)
        for folder in (path.parent, path.parent.parent, Path(root)):
            folder.chmod(0o755)
        nobody = pwd.getpwnam("nobody").pw_uid
        program = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(10)\n"
            "s.sendall(bytes.fromhex(sys.argv[2])); print(len(s.recv(100)))"
        )
        hello = pack(Hello(rank=1)).hex()
        done = subprocess.run(
            ["/usr/bin/env", "python3", "-c", program, str(path), hello],
            user=nobody,
            capture_output=True,
            cwd="/",
            check=False,
        )
        assert b"Permission" not in done.stderr
        assert done.stdout == b"0\n" or b"reset" in done.stderr.lower() or b"Broken pipe" in done.stderr
        assert alone.rollbacks == []


def test_long_spool_path_gets_a_short_socket(tmp_path: Path) -> None:
    node = Node(tmp_path / ("deep" * 30), (0, 1))
    first, second = node.open(0), node.open(1)
    assert len(os.fsencode(node.socket)) <= 103
    first.report(window(1, num_rank_steps=10))
    second.report(window(1, num_rank_steps=10))
    path = node.socket
    close_all((first, None), (second, None))
    (merged,) = windows_of(node.spooled())
    assert merged.num_rank_steps == 20
    assert not path.exists()


def test_local_messages_survive_any_cut(alone: Node) -> None:
    messages = [Hello(3), LossPart([1, 2], [float("inf"), 0.5], [1.0, 2.0])]
    data = b"".join(pack(message) for message in messages)
    inlet = Inlet()
    taken = [message for index in range(len(data)) for message in inlet.requests(data[index : index + 1])]
    assert taken == messages
