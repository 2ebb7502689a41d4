"""`gradwire doctor`: what it says of this machine, of a real server, and of a machine without torch."""

import email.utils
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from gradwire.cli import main
from gradwire.doctor import machine
from gradwire.doctor.command import table
from gradwire.doctor.findings import Finding, failed, ok
from gradwire.doctor.service import clock, examine
from scripted_server import unused_port
from server_process import ServerProcess, server

__all__ = ["server"]

ROOT = Path(__file__).parents[2]

# All that the command needs besides the standard library.
NEEDED = ("msgspec", "httpx", "httpcore", "h11", "anyio", "idna", "certifi", "sniffio", "typing_extensions")


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GRADWIRE_SERVER", "GRADWIRE_TOKEN", "GLOO_SOCKET_IFNAME", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRADWIRE_SPOOL", str(tmp_path / "spool"))


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_sound_machine_with_a_server_is_well(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GRADWIRE_SERVER", server.url)
    monkeypatch.setenv("GRADWIRE_TOKEN", server.ingest_token)
    assert main(["doctor", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["is_well"] is True
    states = {finding["check"]: finding["state"] for finding in said["findings"]}
    assert list(states) == [
        "framework",
        "backend",
        "kernels",
        "compiler",
        "interface",
        "link",
        "spool",
        "server",
        "token",
        "clock",
    ]
    wanted = ("framework", "backend", "kernels", "compiler", "spool", "server", "token", "clock")
    assert {check: states[check] for check in wanted} == dict.fromkeys(wanted, "ok")


def test_wrong_tokens_are_told_apart(server: ServerProcess) -> None:
    other = by_check(list(examine(server.url, server.operator_token)))
    assert (other["server"].state, other["token"].state, other["clock"].state) == ("ok", "warning", "ok")
    assert "not for training" in other["token"].text
    unknown = by_check(list(examine(server.url, "x" * 40)))["token"]
    assert unknown.state == "failed"
    assert unknown.fix.startswith("export GRADWIRE_TOKEN=$(gradwire-server token create --kind ingest")
    assert by_check(list(examine(server.url, None)))["token"].state == "failed"


def test_dead_server_fails_and_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--server", f"http://127.0.0.1:{unused_port()}"]) == 1
    said = capsys.readouterr().out
    assert "failed   server" in said
    assert "-> gradwire-server serve" in said
    assert "token" not in said


def test_no_server_is_only_a_warning() -> None:
    (finding,) = examine(None, None)
    assert (finding.state, finding.fix) == ("warning", "export GRADWIRE_SERVER=http://HOST:8420")


@pytest.mark.parametrize(
    ("skew_seconds", "state", "text"),
    [(0.0, "ok", "within"), (-1.5, "ok", "within"), (90.0, "warning", "ahead of"), (-90.0, "warning", "behind")],
)
def test_clock_is_compared_within_what_a_date_can_tell(skew_seconds: float, state: str, text: str) -> None:
    server_time = 1_700_000_000.7
    date = email.utils.formatdate(server_time, usegmt=True)
    here = server_time + skew_seconds
    finding = clock(date, here - 0.1, here + 0.1)
    assert finding.state == state
    assert text in finding.text
    assert clock("", here, here).state == "warning"


def test_interface_that_does_not_exist_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuch0")
    name, finding = machine.interface()
    assert (name, finding.state, finding.fix) == ("", "failed", "unset GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    assert machine.interface() == ("lo", ok("interface", "lo, chosen by GLOO_SOCKET_IFNAME"))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert machine.interface()[0] == "lo"


def under_torchrun(*options: str, disable: str) -> str:
    """Return what a process that torchrun started says of restarts."""
    script = "from gradwire.doctor import command, machine; print(command.table(list(machine.restarts())))"
    torchrun = (sys.executable, "-m", "torch.distributed.run", *options, "--no-python")
    outcome = subprocess.run(
        [*torchrun, sys.executable, "-c", script],
        env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": disable},
        capture_output=True,
        text=True,
        check=True,
    )
    return outcome.stdout.strip()


def test_restarts_that_would_hang_are_told_under_torchrun() -> None:
    said = under_torchrun("--standalone", "--max-restarts", "1", disable="0")
    assert said.startswith("warning  restarts   torchrun of torch 2.")
    assert "-> TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend c10d ..." in said
    assert under_torchrun("--standalone", "--max-restarts", "1", disable="1") == ""


@pytest.mark.parametrize("number", [None, "0", "many"])
def test_unknown_restarts_are_not_told_of(monkeypatch: pytest.MonkeyPatch, number: str | None) -> None:
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.delenv("TORCHELASTIC_MAX_RESTARTS", raising=False)
    if number is not None:
        monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", number)
    assert list(machine.restarts()) == []


def test_spool_that_cannot_be_written_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADWIRE_SPOOL", "/proc/spool")
    assert machine.spool().state == "warning"


def test_table_names_the_command_below_its_line() -> None:
    text = table([ok("framework", "torch 2.13"), failed("token", "none is set", "export GRADWIRE_TOKEN=...")])
    assert text == (
        "ok       framework  torch 2.13\n"
        "failed   token      none is set\n"
        "                    -> export GRADWIRE_TOKEN=..."
    )


def test_machine_without_torch_is_told_so(tmp_path: Path) -> None:
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        source = origin.parent if spec.submodule_search_locations else origin
        (tmp_path / source.name).symlink_to(source)
    rooms = [str(ROOT / room) for room in ("agent", "protocol", "compression")]
    # -S leaves out all that is installed, torch too.
    outcome = subprocess.run(
        [sys.executable, "-S", "-m", "gradwire", "doctor"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([*rooms, str(tmp_path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 1, outcome.stderr
    assert "failed   framework  torch is not installed" in outcome.stdout
    assert "-> pip install 'gradwire[agent]'" in outcome.stdout
    assert "Traceback" not in outcome.stderr
