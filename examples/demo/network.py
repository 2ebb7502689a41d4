"""Network namespaces for the ranks, each behind a link of 1 Gbit/s to one bridge that has a leg for the server.

    rank 0  [eth0 10.77.0.1] -- 1 Gbit/s --+
                                           +-- [bridge 10.77.0.254, the server's leg]
    rank 1  [eth0 10.77.0.2] -- 1 Gbit/s --+

The bridge stands in a namespace of the demo's own, not on the host, so that neither the host's firewall nor a
second demo is in the way. Namespaces are held by processes and have no names: when the processes end, however they
end, the kernel removes namespaces, links and addresses.
"""

import os
import shlex
import socket
import subprocess
import time
from dataclasses import dataclass

BYTES_PER_SECOND = 125_000_000
SERVER_LEG = "10.77.0.254"
NAMESPACE_DEADLINE_SECONDS = 10.0
# Segments of 64 kB must pass whole: to cut them costs CPU time that training needs.
LEAST_BURST_BYTES = 68_000
# What may pass at once after a pause. A timer that is a little late must not leave the link empty, but a small
# message must not pass as if there were no limit.
BURST_SECONDS = 0.002


def burst_of(bytes_per_second: int) -> int:
    """Return what may pass a link at once after a pause, bytes."""
    return max(LEAST_BURST_BYTES, int(bytes_per_second * BURST_SECONDS))


def shape_of(bytes_per_second: int) -> str:
    """Return the queueing discipline that lets at most so much through one end of a link."""
    return f"tbf rate {8 * bytes_per_second}bit burst {burst_of(bytes_per_second)} latency 100ms"


SHAPE = shape_of(BYTES_PER_SECOND)

# Everything that the demo needs of the kernel, in one go.
TRIAL = f"""
ip link set lo up
ip link add bridge type bridge
unshare --net -- sleep 10 & sleeper=$!
trap 'kill $sleeper' EXIT
ip link add port type veth peer name eth0
ip link set port master bridge up
tc qdisc add dev port root {SHAPE}
"""


@dataclass(frozen=True)
class Ground:
    """How a process is started on which the network can be built."""

    # Comes before the command; empty on plain loopback.
    prefix: tuple[str, ...]
    # What the run's page says beside the link's speed.
    note: str

    @property
    def is_shaped(self) -> bool:
        """Whether ranks get namespaces and links."""
        return bool(self.prefix)

    @property
    def link(self) -> str:
        """The link between the ranks in a few words."""
        return f"1 Gbit/s, {self.note}" if self.is_shaped else self.note


NAMESPACES = Ground(("unshare", "--net", "--"), "shaped by tbf between network namespaces of one machine")
USER_NAMESPACES = Ground(("unshare", "--user", "--map-root-user", "--net", "--"), NAMESPACES.note)
LOOPBACK = Ground((), "unshaped")


def choose_ground() -> tuple[Ground, str]:
    """Return the best ground that this machine allows, and why it is no better, "" for the first two."""
    reason = ""
    for ground in (NAMESPACES, USER_NAMESPACES):
        try:
            trial = subprocess.run(
                [*ground.prefix, "sh", "-euc", TRIAL], capture_output=True, text=True, timeout=30, check=False
            )
        except FileNotFoundError as error:
            return LOOPBACK, f"{error.filename} is not installed"
        if trial.returncode == 0:
            return ground, ""
        reason = trial.stderr.strip().splitlines()[-1] if trial.stderr.strip() else f"exit code {trial.returncode}"
    return LOOPBACK, reason


def make_bridge() -> socket.socket:
    """Build the bridge in this process's namespace; return a listening socket on the server's leg of it."""
    _run("ip link set lo up")
    _run("ip link add bridge type bridge")
    _run(f"ip address add {SERVER_LEG}/24 dev bridge")
    _run("ip link set bridge up")
    return socket.create_server((SERVER_LEG, 0))


def address_of(rank: int) -> str:
    return f"10.77.0.{rank + 1}"


def start_behind_link(
    rank: int, command: list[str], environment: dict[str, str], shape: str = SHAPE
) -> subprocess.Popen[bytes]:
    """Start a rank in a namespace of its own; its command begins once the link is up. No shape, no limit."""
    held = ["unshare", "--net", "--", "sh", "-c", 'read -r _ && exec "$@"', "rank", *command]
    process = subprocess.Popen(held, env=environment, stdin=subprocess.PIPE)
    try:
        _wait_for_namespace(process.pid)
        _connect(rank, process.pid, shape)
    except BaseException:
        process.kill()
        raise
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.close()
    return process


def _connect(rank: int, pid: int, shape: str) -> None:
    port, inside = f"rank{rank}", f"nsenter --target {pid} --net --"
    _run(f"ip link add {port} type veth peer name eth0 netns {pid}")
    _run(f"ip link set {port} master bridge up")
    _run(f"{inside} ip link set lo up")
    _run(f"{inside} ip address add {address_of(rank)}/24 dev eth0")
    _run(f"{inside} ip link set eth0 up")
    if shape:
        # Both directions: what the rank sends is shaped at its end of the link, what it receives at the bridge's.
        _run(f"{inside} tc qdisc add dev eth0 root {shape}")
        _run(f"tc qdisc add dev {port} root {shape}")


def _wait_for_namespace(pid: int) -> None:
    mine = os.readlink("/proc/self/ns/net")
    deadline = time.monotonic() + NAMESPACE_DEADLINE_SECONDS
    while os.readlink(f"/proc/{pid}/ns/net") == mine:
        if time.monotonic() > deadline:
            raise TimeoutError(f"process {pid} got no network namespace of its own")
        time.sleep(0.01)


def _run(command: str) -> None:
    subprocess.run(shlex.split(command), check=True)
