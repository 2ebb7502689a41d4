"""Runs a program on every rank of a small cluster of network namespaces and returns what rank 0 says."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from examples.demo import network

GRACE_SECONDS = 15.0
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass(frozen=True)
class Cluster:
    """Hosts on one bridge, each behind a link of its own."""

    num_hosts: int
    # Bytes per second of a host's link each way, 0 without a limit.
    link: int
    ranks_per_host: int = 1
    # Bytes per second between the ranks of a host each way, 0 without a limit.
    inner_link: int = 0

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.num_hosts * self.ranks_per_host


def run(cluster: Cluster, module: str, options: object, limit_seconds: float) -> Any:
    """Run `python -m module OPTIONS` on every rank; the options are one JSON argument.

    Returns:
        The last line of standard output, from JSON.

    Raises:
        RuntimeError: The machine allows no network namespaces, a rank failed, or the limit has passed; all ranks
            are gone then.
    """
    ground, reason = network.choose_ground()
    if not ground.is_shaped:
        raise RuntimeError(
            f"the ranks need network namespaces of their own, and this machine allows none: {reason}"
        )
    command = [sys.executable, "-m", module, json.dumps(options)]
    hub = [
        sys.executable,
        "-m",
        "bench.hub",
        "--hosts",
        cluster.num_hosts,
        "--ranks-per-host",
        cluster.ranks_per_host,
    ]
    hub += ["--link", cluster.link, "--inner-link", cluster.inner_link, "--", *command]
    control, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as log, control:
        with theirs:
            process = subprocess.Popen(
                [*ground.prefix, *map(str, hub)],
                cwd=ROOT,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        output = _output(process, control, limit_seconds)
        log.seek(0)
        tail = "\n".join(log.read().decode(errors="replace").splitlines()[-30:])
    if process.returncode or not output.strip():
        raise RuntimeError(f"the ranks of {cluster} ended with exit code {process.returncode}:\n{tail}")
    return json.loads(output.splitlines()[-1])


def _output(process: subprocess.Popen[bytes], control: socket.socket, limit_seconds: float) -> bytes:
    """Return what the ranks print until they end; whatever happens, no process is left."""
    try:
        return process.communicate(timeout=limit_seconds)[0]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the ranks did not end within {limit_seconds:.0f} s") from None
    finally:
        control.close()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
