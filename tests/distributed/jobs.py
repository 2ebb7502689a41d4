"""Training scripts of tests, run as people run them: a file of its own, python or torchrun, and a real server."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from gradwire_protocol import routes
from scripted_server import wait_until
from server_process import ServerProcess, environment

# How scripts begin: a small DDP model on gloo, one process or many.
BEGINNING = textwrap.dedent(
    """
    import os, signal, sys, tempfile, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    import gradwire

    def begin(rank=None, world_size=1, store=None):
        if store is None and "WORLD_SIZE" in os.environ:
            dist.init_process_group("gloo")
        else:
            store = store or tempfile.mkstemp()[1]
            dist.init_process_group("gloo", init_method="file://" + store, rank=rank or 0, world_size=world_size)
        torch.manual_seed(0)
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        return model, torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(model, optimizer, data=None):
        loss = model(torch.ones(2, 8) if data is None else data).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss
    """
)


def start(
    server: ServerProcess, folder: Path, script: str, *arguments: str, torchrun: tuple[str, ...] | None = None
) -> "subprocess.Popen[str]":
    """Start a script that follows `BEGINNING`; with `torchrun`, under torchrun with these options.

    It runs in a session of its own, so that a signal to its process group reaches what it started, and nobody else.
    """
    path = folder / "train.py"
    path.write_text(BEGINNING + textwrap.dedent(script))
    launcher = [sys.executable]
    if torchrun is not None:
        launcher += ["-m", "torch.distributed.run", "--standalone", *torchrun]
    variables = {"GRADWIRE_SPOOL": str(folder / "s"), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*launcher, str(path), *arguments],
        env=environment(server) | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


# How the agent's one line at the start begins.
WELCOME = "gradwire: attached to "


def finish(job: "subprocess.Popen[str]", timeout_seconds: float = 120.0) -> tuple[int, str, str]:
    """Wait for a job and return its exit status, what it wrote to stdout, and to stderr but for the welcome."""
    try:
        said, complained = job.communicate(timeout=timeout_seconds)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, 9)
        said, complained = job.communicate()
        raise AssertionError(f"did not end in {timeout_seconds} s:\n{said}\n{complained}") from None
    lines = complained.splitlines(keepends=True)
    return job.returncode, said, "".join(line for line in lines if not line.startswith(WELCOME))


def runs(server: ServerProcess, name: str) -> list[dict[str, Any]]:
    """Return the runs of this name, newest first."""
    listed = server.operator().get(routes.RUNS, params={"limit": 100}).json()["runs"]
    return [run for run in listed if run["name"] == name]


def run_of(server: ServerProcess, name: str) -> dict[str, Any]:
    """Return the only run of this name."""
    found = runs(server, name)
    assert len(found) == 1, found
    return found[0]


def await_status(server: ServerProcess, name: str, status: str, timeout_seconds: float = 20.0) -> dict[str, Any]:
    """Return the only run of this name once it has the status."""

    def present() -> str:
        return str([run["status"]["name"] for run in runs(server, name)])

    wait_until(lambda: present() == f"['{status}']", timeout_seconds, present)
    return run_of(server, name)


def loss_points(server: ServerProcess, run: str, **parameters: Any) -> list[tuple[int, int, float]]:
    """Return first step, count and last value of each bucket of the loss, one bucket a step."""
    parameters = {"name": "loss", "max_buckets": 1000, **parameters}
    answer = server.operator().get(routes.SERIES.format(run=run), params=parameters)
    assert answer.status_code == 200, answer.text
    return [(point["first_step"], point["count"], point["last"]) for point in answer.json()["points"]]
