"""Starts the ranks, watches them and ends them; a process of its own, inside the demo's network namespace.

Standard input is a socket to the demo: through it the hub hands out the server's leg of the bridge, and when it
closes, whatever became of the demo, the hub ends the ranks.
"""

import argparse
import os
import select
import signal
import socket
import subprocess
import sys
import time

from examples.demo import network

# In a namespace of its own every demo can use the same port.
RENDEZVOUS_PORT = 29500
POLL_SECONDS = 0.1
GRACE_SECONDS = 10.0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--shaped", action="store_true")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def shaped_environments(num_ranks: int, control: socket.socket) -> list[dict[str, str]]:
    """Build the bridge, give its listening socket to the demo, and return what torchrun would set on each host.

    A socket stays in the namespace that it was made in, whoever holds it: so the demo, outside, can accept what the
    ranks send to the server's leg.
    """
    with network.make_bridge() as listener:
        socket.send_fds(control, [b"leg"], [listener.fileno()])
        server = f"http://{network.SERVER_LEG}:{listener.getsockname()[1]}"
    host = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GLOO_SOCKET_IFNAME": "eth0", "GRADWIRE_SERVER": server}
    rendezvous = {"MASTER_ADDR": network.address_of(0), "MASTER_PORT": str(RENDEZVOUS_PORT)}
    link = {"GRADWIRE_LINK_BYTES_PER_SECOND": str(network.BYTES_PER_SECOND)}
    return [{**host, **rendezvous, **link, "GROUP_RANK": str(rank)} for rank in range(num_ranks)]


def loopback_environments(num_ranks: int) -> list[dict[str, str]]:
    """Return what torchrun would set for ranks that share this host."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    host = {"GROUP_RANK": "0", "LOCAL_WORLD_SIZE": str(num_ranks), "GLOO_SOCKET_IFNAME": "lo"}
    return [{**host, **rendezvous, "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]


def start(options: argparse.Namespace, control: socket.socket, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Start all ranks into `ranks`, so that those already started can be ended when one cannot."""
    if options.shaped:
        environments = shaped_environments(options.ranks, control)
    else:
        environments = loopback_environments(options.ranks)
    common = {
        "WORLD_SIZE": str(options.ranks),
        "OMP_NUM_THREADS": "1",
        # gloo warns about every address without a host name, and inside the namespaces none has one.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    for rank, own in enumerate(environments):
        environment = {**os.environ, **common, **own, "RANK": str(rank)}
        if options.shaped:
            ranks.append(network.start_behind_link(rank, options.command, environment))
        else:
            ranks.append(subprocess.Popen(options.command, env=environment, stdin=subprocess.DEVNULL))


def watch(ranks: list[subprocess.Popen[bytes]], control: socket.socket) -> int:
    """Return once all ranks are done, one failed, or the demo is gone; the exit code of the first that failed."""
    while None in (codes := [rank.poll() for rank in ranks]):
        readable, _, _ = select.select([control], [], [], POLL_SECONDS)
        if any(codes) or (readable and not control.recv(1)):
            break
    return next((rank.returncode for rank in ranks if rank.returncode), 0)


def end(ranks: list[subprocess.Popen[bytes]]) -> None:
    """Ask the ranks to end, and make them after a grace."""
    for rank in ranks:
        rank.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    ranks: list[subprocess.Popen[bytes]] = []
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
        try:
            start(arguments(), control, ranks)
            return watch(ranks, control)
        finally:
            end(ranks)


if __name__ == "__main__":
    sys.exit(main())
