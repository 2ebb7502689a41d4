"""The `gradwire` command: plain sentences, honest exit statuses, no tokens, no torch, no traceback."""

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_stream import AgentStream, plan, window
from gradwire.cli import main
from gradwire.transport import place
from gradwire_protocol.identity import new_id
from gradwire_protocol.plans import PlanSpec
from scripted_server import Reply, ScriptedServer, accepted, unused_port, wait_until
from server_process import ServerProcess, server
from toy_training import ToyTraining

__all__ = ["server"]


class Command:
    """Runs `gradwire` in this process and keeps what it said."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.said = ""
        self.complained = ""

    def __call__(self, *arguments: str) -> int:
        self._capsys.readouterr()
        try:
            status = main(arguments)
        except SystemExit as error:
            status = int(error.code or 0)
        self.said, self.complained = self._capsys.readouterr()
        return status


@pytest.fixture
def gradwire(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    for name in ("GRADWIRE_SERVER", "GRADWIRE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADWIRE_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return Command(capsys)


@pytest.fixture
def operator(gradwire: Command, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command with a real server and an operator's token."""
    monkeypatch.setenv("GRADWIRE_SERVER", server.url)
    monkeypatch.setenv("GRADWIRE_TOKEN", server.operator_token)
    return gradwire


@pytest.fixture
def train(server: ServerProcess, tmp_path: Path, operator: Command) -> Iterator[Callable[..., ToyTraining]]:
    """Starts trainings whose runs the server knows."""
    started: list[ToyTraining] = []

    def start(**options: object) -> ToyTraining:
        training = ToyTraining(tmp_path / "spool", server.url, server.ingest_token, **options)  # type: ignore[arg-type]
        started.append(training)
        wait_until(lambda: operator("status", training.run) == 0)
        return training

    yield start
    for training in started:
        training.close()


def test_status_lists_runs_and_shows_one(operator: Command, server: ServerProcess) -> None:
    stream = AgentStream(server.agent(), run_name="größe ✓ 实验", total_steps=5000)
    stream.begin(*(window(10 * index + 1) for index in range(123)))
    assert operator("status") == 0
    header, *lines = operator.said.splitlines()
    assert re.split(r" {2,}", header)[:4] == ["RUN", "NAME", "STATUS", "METHOD"]
    (line,) = [line for line in lines if stream.run in line]
    assert re.split(r" {2,}", line)[1:5] == ["größe ✓ 实验", "running", "uncompressed", "1 230/5 000"]
    for name in (stream.run, stream.run[:30], "größe ✓ 实验"):
        assert operator("status", name) == 0
        assert "running, step 1 230 of 5 000, 2 processes" in operator.said
        assert "45 % of every step is spent waiting" in operator.said


def test_name_of_two_runs_asks_for_more_of_the_id(operator: Command, server: ServerProcess) -> None:
    runs = []
    for _ in range(2):
        stream = AgentStream(server.agent(), run_name="twin")
        stream.begin(window(1))
        runs.append(stream.run)
    assert operator("rollback", "twin") == 2
    assert "2 runs fit 'twin'" in operator.complained
    assert all(run in operator.complained for run in runs)
    assert operator("status", "nobody") == 2
    assert "no run has the id or name 'nobody'" in operator.complained


def test_set_and_rollback_say_what_every_process_did(operator: Command, train: Callable[..., ToyTraining]) -> None:
    training = train(name="steered")
    assert operator("set", "steered", "--codec", "int8", "--param", "block=512", "--reason", "try") == 0
    assert re.fullmatch(
        r"int8 on the only process since step [\d ]+, \d+\.\d s after the request\.\n", operator.said
    )
    assert training.directives[0].plan.parameters == {"block": 512}
    assert training.directives[0].reason == "try"
    assert operator("status", "steered") == 0
    assert "Compression: int8 since step" in operator.said
    assert operator("rollback", "steered") == 0
    assert re.fullmatch(
        r"Uncompressed on the only process since step [\d ]+, \d+\.\d s after the request\.\n", operator.said
    )
    assert training.codec == "none"
    assert operator("rollback", "steered") == 0
    assert operator.said.startswith("Already uncompressed since step ")


def test_set_keeps_what_else_the_plan_says(operator: Command, train: Callable[..., ToyTraining]) -> None:
    training = train(name="exempt")
    training.switch(PlanSpec(codec="bf16", min_elements=7, exempt_patterns=("*.bias",)), "guard")
    wait_until(lambda: operator("status", "exempt") == 0 and "bf16 since" in operator.said)
    assert operator("set", "exempt", "--codec", "int8") == 0
    (directive,) = training.directives
    assert (directive.plan.min_elements, directive.plan.exempt_patterns) == (7, ("*.bias",))
    assert directive.plan.codec == "int8"


def test_refused_change_says_who_and_why_and_fails(operator: Command, train: Callable[..., ToyTraining]) -> None:
    train(name="refusing", refuse="not enough memory")
    assert operator("set", "refusing", "--codec", "int8") == 1
    assert "Not applied. process 0 on node-00 refused: not enough memory." in operator.complained
    assert "Uncompressed stays everywhere." in operator.complained


def test_no_answer_is_not_called_done_and_names_the_way_out(
    operator: Command, train: Callable[..., ToyTraining]
) -> None:
    training = train(name="deaf", answers=False)
    assert operator("set", "deaf", "--codec", "int8", "--timeout", "0.3") == 1
    assert "No answer for 0.3 s" in operator.complained
    assert operator("rollback", "deaf", "--timeout", "0.3") == 1
    assert "gradwire rollback --local" in operator.complained
    assert training.codec == "none"


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (("--codec", "int8", "--param", "block=3"), 2, "int8.block is 3; wanted: int from 64 to 4096"),
        (("--codec", "int8", "--param", "bits=3"), 2, "codec int8 has no parameter 'bits'"),
        (("--codec", "int8", "--param", "block"), 2, "--param"),
        (("--codec", "zip"), 2, "invalid choice"),
        (("--codec", "onebit"), 1, "onebit is refused: one-bit gradients do not converge under AdamW"),
    ],
)
def test_choice_that_is_not_acceptable_is_one_sentence(
    operator: Command, server: ServerProcess, arguments: tuple[str, ...], status: int, text: str
) -> None:
    stream = AgentStream(server.agent())
    stream.begin(window(1))
    assert operator("set", stream.run, *arguments) == status
    assert text in operator.complained
    assert "Traceback" not in operator.complained


def test_wrong_token_is_refused_and_never_shown(operator: Command) -> None:
    assert operator("status", "--token", "wrong-secret") == 2
    assert operator.complained.startswith("gradwire: ")
    assert "wrong-secret" not in operator.said + operator.complained


def test_settings_that_are_missing_or_wrong_are_named(gradwire: Command) -> None:
    assert gradwire("status") == 2
    assert "GRADWIRE_SERVER" in gradwire.complained
    assert gradwire("status", "--server", "http://::1:8123") == 2
    assert "'http://::1:8123'" in gradwire.complained
    assert gradwire("status", "--server", f"http://127.0.0.1:{unused_port()}") == 2
    assert "does not answer" in gradwire.complained
    assert gradwire("rollback") == 2
    assert "--local" in gradwire.complained


def test_token_over_plain_http_to_another_machine_is_warned_of(gradwire: Command) -> None:
    server = f"http://0.0.0.0:{unused_port()}"
    assert gradwire("status", "--server", server, "--token", "operator-secret") == 2
    assert "unencrypted" in gradwire.complained
    assert "operator-secret" not in gradwire.complained


def test_local_rollback_works_with_the_server_dead(gradwire: Command, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{unused_port()}"
    with ToyTraining(tmp_path / "spool", dead, "t", name="lonely") as training:
        training.switch(plan("int8"), "local")
        assert gradwire("rollback", "--local", "--reason", "loss spike") == 0
        assert re.fullmatch(r"Uncompressed on the only process since step \d+, \d+\.\d s\.\n", gradwire.said)
        assert training.codec == "none"
        assert gradwire("rollback", "--local") == 0
        assert gradwire.said.startswith("Already uncompressed since step ")
        (folder, facts) = place.find_streams(tmp_path / "spool")[0]
        training.switch(plan("int8"), "local")
        assert gradwire("rollback", "--local", "--socket", facts.socket) == 0
        assert training.codec == "none"
        assert folder.exists()
        training.close(1.0)
    assert gradwire("rollback", "--local") == 2
    assert "no node of a live run answers" in gradwire.complained


def test_local_rollback_asks_which_of_several_runs(gradwire: Command, tmp_path: Path) -> None:
    with (
        ToyTraining(tmp_path / "spool", None, None, name="one") as one,
        ToyTraining(tmp_path / "spool", None, None, name="two") as two,
    ):
        for training in (one, two):
            training.switch(plan("int8"), "local")
        assert gradwire("rollback", "--local") == 2
        assert f"--run {one.run}  one" in gradwire.complained
        assert f"--run {two.run}  two" in gradwire.complained
        assert gradwire("rollback", "--local", "--run", "two") == 0
        assert (one.codec, two.codec) == ("int8", "none")
        assert gradwire("rollback", "--local", one.run) == 0
        assert one.codec == "none"


def test_local_rollback_reaches_every_model_of_a_run(gradwire: Command, tmp_path: Path) -> None:
    run = new_id()
    with (
        ToyTraining(tmp_path / "spool", None, None, run=run, model="actor") as actor,
        ToyTraining(tmp_path / "spool", None, None, run=run, model="critic") as critic,
    ):
        for training in (actor, critic):
            training.switch(plan("int8"), "local")
        assert gradwire("rollback", "--local") == 0
        assert (actor.codec, critic.codec) == ("none", "none")
        assert sorted(line.partition(":")[0] for line in gradwire.said.splitlines()) == ["actor", "critic"]


def test_sync_delivers_what_a_dead_server_left(gradwire: Command, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{unused_port()}"
    training = ToyTraining(tmp_path / "spool", dead, "t", name="left")
    wait_until(lambda: training.step >= 30)
    summary = training.close(1.0)
    assert summary.num_undelivered > 30
    assert gradwire("sync") == 1
    assert f"{summary.num_undelivered} still wait in {summary.spool_path}" in gradwire.said
    with ScriptedServer(accepted) as scripted:
        assert gradwire("sync", "--server", scripted.url, "--token", "ingest-secret") == 0
        assert f"{summary.num_undelivered} measurements delivered, nothing is left." in gradwire.said
        records = [record for heard in scripted.heard for record in heard.batch.records]
        assert len(records) == summary.num_undelivered
        assert scripted.heard[0].headers["authorization"] == "Bearer ingest-secret"
    assert gradwire("sync") == 0
    assert gradwire.said.startswith("Nothing is left to deliver")
    assert list((tmp_path / "spool").iterdir()) == []


def test_sync_leaves_a_live_run_alone(gradwire: Command, tmp_path: Path) -> None:
    with ToyTraining(tmp_path / "spool", None, None), ScriptedServer(accepted) as scripted:
        assert gradwire("sync", str(tmp_path / "spool"), "--server", scripted.url) == 1
        assert f"process {os.getpid()} on " in gradwire.said
        assert scripted.heard == []


def test_sync_of_a_run_without_a_server_asks_for_one(gradwire: Command, tmp_path: Path) -> None:
    ToyTraining(tmp_path / "spool", None, None).close()
    assert gradwire("sync") == 1
    assert "name one with --server" in gradwire.said


def test_text_from_elsewhere_cannot_steer_the_terminal(gradwire: Command) -> None:
    reply = Reply(418, b'{"error":{"code":"invalid","message":"\\u001b[2Jgone\\u202e"}}')
    with ScriptedServer(reply) as scripted:
        assert gradwire("status", "--server", scripted.url) == 1
    assert "gone" in gradwire.complained
    assert "\x1b" not in gradwire.complained
    assert "\u202e" not in gradwire.complained


def test_command_starts_without_torch_and_numpy() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['numpy'] = None; sys.modules['httpx'] = None\n"
        "import gradwire\n"
        "from gradwire.cli import main\n"
        "raise SystemExit(main(['status', '--server', 'http://127.0.0.1:1']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "needs httpx: pip install 'gradwire[agent]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_closed_pipe_is_no_traceback(server: ServerProcess) -> None:
    environment = {**os.environ, "GRADWIRE_SERVER": server.url, "GRADWIRE_TOKEN": server.operator_token}
    program = "from gradwire.cli import main; raise SystemExit(main(['status']))"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program], stdout=writer, stderr=subprocess.PIPE, env=environment, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_interrupt_ends_the_command_quietly() -> None:
    program = "import sys; from gradwire.cli import main; raise SystemExit(main(sys.argv[1:]))"
    with ScriptedServer(Reply(delay_seconds=math.inf)) as scripted:
        arguments = [sys.executable, "-c", program, "status", "--server", scripted.url]
        command = subprocess.Popen(arguments, stderr=subprocess.PIPE)
        scripted.wait_for(1)
        command.send_signal(signal.SIGINT)
        _, complained = command.communicate(timeout=20.0)
    assert (command.returncode, complained) == (130, b"")
