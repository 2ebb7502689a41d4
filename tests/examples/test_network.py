"""The demo's namespaces and links: really apart, really shaped, really gone afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from examples.demo import network, relay

pytestmark = pytest.mark.netns

ROOT = Path(__file__).parents[2]
WAITING = "import time; print('up', flush=True); time.sleep(600)"
ADDRESSES = """
import json, os, subprocess, sys
links = json.loads(subprocess.check_output(["ip", "-json", "address", "show", "dev", "eth0"]))
address = links[0]["addr_info"][0]["local"]
line = {"rank": os.environ["RANK"], "address": address, "server": os.environ["GRADWIRE_SERVER"]}
sys.stdout.write(json.dumps(line) + "\\n")
"""
# Rank 1 sends 40 MB to rank 0, which prints the seconds it took.
TRANSFER = """
import os, socket, time
address = (os.environ["MASTER_ADDR"], 29501)
if os.environ["RANK"] == "0":
    connection, _ = socket.create_server(address).accept()
    began, left = time.monotonic(), 40_000_000
    while left > 0:
        left -= len(connection.recv(1 << 20))
    print(time.monotonic() - began, flush=True)
else:
    for _ in range(200):
        try:
            connection = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    connection.sendall(bytes(40_000_000))
"""
ASK_SERVER = """
import os, urllib.request
print(urllib.request.urlopen(os.environ["GRADWIRE_SERVER"], timeout=20).read().decode(), flush=True)
"""


@pytest.fixture(params=[network.NAMESPACES, network.USER_NAMESPACES], ids=["root", "user"])
def ground(request: pytest.FixtureRequest) -> network.Ground:
    if subprocess.run([*request.param.prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine forbids such namespaces")
    return request.param


class Hub:
    """A hub with two ranks that run Python code."""

    def __init__(self, ground: network.Ground, code: str) -> None:
        hub = [sys.executable, "-m", "examples.demo.hub", "--ranks", "2", "--shaped"]
        self.control, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [*ground.prefix, *hub, "--", sys.executable, "-c", code],
                cwd=ROOT,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        _, (descriptor,), _, _ = socket.recv_fds(self.control, 16, 1)
        self.listener = socket.socket(fileno=descriptor)

    def lines(self, count: int) -> list[str]:
        assert self.process.stdout is not None
        return [self.process.stdout.readline().strip() for _ in range(count)]

    def close(self) -> None:
        """End it if it is still there, so that a failed test leaves nothing behind."""
        self.control.close()
        self.listener.close()
        try:
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()


@pytest.fixture
def start(request: pytest.FixtureRequest, ground: network.Ground) -> Callable[[str], Hub]:
    def _start(code: str) -> Hub:
        hub = Hub(ground, code)
        request.addfinalizer(hub.close)
        return hub

    return _start


def live_processes(session: int) -> list[str]:
    listing = subprocess.run(
        ["ps", "-o", "stat=,args=", "-s", str(session)], capture_output=True, text=True, check=False
    )
    return [line for line in listing.stdout.splitlines() if line and not line.startswith("Z")]


def wait_until_gone(session: int) -> None:
    deadline = time.monotonic() + 20
    while live_processes(session):
        assert time.monotonic() < deadline, live_processes(session)
        time.sleep(0.05)


def test_every_rank_has_its_own_address_and_knows_the_servers_leg(start: Callable[[str], Hub]) -> None:
    hub = start(ADDRESSES)
    ranks = sorted((json.loads(line) for line in hub.lines(2)), key=lambda line: line["rank"])
    assert [line["address"] for line in ranks] == ["10.77.0.1", "10.77.0.2"]
    leg = f"http://{network.SERVER_LEG}:{hub.listener.getsockname()[1]}"
    assert {line["server"] for line in ranks} == {leg}
    assert hub.process.wait(20) == 0


def test_link_carries_no_more_than_its_speed(start: Callable[[str], Hub]) -> None:
    (seconds,) = start(TRANSFER).lines(1)
    # The bucket of 256 kB and the socket buffers may pass at once; nothing says how much slower a busy machine is.
    assert float(seconds) > 0.8 * 40_000_000 / network.BYTES_PER_SECOND


def test_ranks_reach_the_server_outside_through_the_leg(start: Callable[[str], Hub]) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello"
    hub = start(ASK_SERVER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay.start(hub.listener.dup(), server.getsockname())
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)
    assert hub.lines(2) == ["hello", "hello"]


def test_two_networks_stand_side_by_side(start: Callable[[str], Hub]) -> None:
    first, second = start(WAITING), start(WAITING)
    assert first.lines(2) == second.lines(2) == ["up", "up"]


def test_ranks_end_when_the_demo_is_gone(start: Callable[[str], Hub]) -> None:
    hub = start(WAITING)
    assert hub.lines(2) == ["up", "up"]
    hub.control.close()
    hub.process.wait(20)
    wait_until_gone(hub.process.pid)


def test_ranks_end_when_the_hub_is_told_to(start: Callable[[str], Hub]) -> None:
    hub = start(WAITING)
    assert hub.lines(2) == ["up", "up"]
    hub.process.terminate()
    assert hub.process.wait(20) == 128 + signal.SIGTERM
    wait_until_gone(hub.process.pid)


def test_others_end_when_one_rank_fails(start: Callable[[str], Hub]) -> None:
    hub = start(f"import os, sys\nif os.environ['RANK'] == '1': sys.exit(3)\n{WAITING}")
    assert hub.process.wait(30) == 3
    wait_until_gone(hub.process.pid)


def test_nothing_is_left_on_the_host(start: Callable[[str], Hub]) -> None:
    hub = start(ADDRESSES)
    hub.lines(2)
    hub.process.wait(20)
    addresses = subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout
    assert "10.77.0" not in addresses


def test_a_machine_without_namespaces_gets_loopback_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    forbidding = tmp_path / "unshare"
    forbidding.write_text("#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n")
    forbidding.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert network.choose_ground() == (network.LOOPBACK, "unshare: unshare failed: Operation not permitted")
    assert network.LOOPBACK.note == "unshaped"
