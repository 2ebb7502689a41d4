"""Starts the ranks of a benchmark, one host or several behind shaped links; a process inside a network of its own.

Hosts are network namespaces on one bridge, held by the ranks alone, so that nothing is left when they end. Standard
input is a socket to the benchmark: when it closes, whatever became of the benchmark, the ranks are ended.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys

from examples.demo import hub, network

# The whole network is the benchmark's own, so every benchmark can use the same port.
RENDEZVOUS_PORT = 29500


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--ranks-per-host", type=int, required=True)
    parser.add_argument("--link", type=int, required=True, help="bytes per second of each host's link, 0: no limit")
    parser.add_argument("--inner-link", type=int, required=True, help="the same inside a host, one way")
    parser.add_argument("command", nargs="+")
    return parser.parse_args()


def environment_of(host: int, local_rank: int, options: argparse.Namespace) -> dict[str, str]:
    """Return what torchrun would set on that host."""
    per_host = options.ranks_per_host
    return {
        "MASTER_ADDR": network.address_of(0),
        "MASTER_PORT": str(RENDEZVOUS_PORT),
        "WORLD_SIZE": str(options.hosts * per_host),
        "RANK": str(host * per_host + local_rank),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(per_host),
        "GROUP_RANK": str(host),
        "GLOO_SOCKET_IFNAME": "eth0",
        "OMP_NUM_THREADS": "1",
        # gloo warns about every address without a host name, and here none has one.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }


def start(options: argparse.Namespace, ranks: list[subprocess.Popen[bytes]]) -> None:
    """Start all ranks into `ranks`, so that those already started can be ended when one cannot."""
    network.make_bridge().close()
    shape = network.shape_of(options.link) if options.link else ""
    # A host name of its own makes a namespace a host to whoever asks.
    held = ["unshare", "--uts", "--", *options.command]
    for host in range(options.hosts):
        environments = [
            {**os.environ, **environment_of(host, rank, options)} for rank in range(options.ranks_per_host)
        ]
        ranks.append(network.start_behind_link(host, held, environments[0], shape))
        inside = ["nsenter", "--target", str(ranks[-1].pid), "--net", "--"]
        if options.inner_link:
            # Both ways of the loopback device share one queue.
            discipline = network.shape_of(2 * options.inner_link).split()
            subprocess.run([*inside, "tc", "qdisc", "add", "dev", "lo", "root", *discipline], check=True)
        ranks += [
            subprocess.Popen([*inside, *held], env=environment, stdin=subprocess.DEVNULL)
            for environment in environments[1:]
        ]


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    ranks: list[subprocess.Popen[bytes]] = []
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as control:
        try:
            start(arguments(), ranks)
            return hub.watch(ranks, control)
        finally:
            hub.end(ranks)


if __name__ == "__main__":
    sys.exit(main())
