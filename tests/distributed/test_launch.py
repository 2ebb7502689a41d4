"""`gradwire run` under torchrun: scripts with no word of Gradwire in them, and a real server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from server_process import ServerProcess, environment, server

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python")

# Ends with an exit code of its own, after its first steps.
FAILS = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
raise ArithmeticError(sys.argv[1:])
"""

# Has a hook of its own, and an evaluation on one rank before training.
HOOKED = """
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
model.register_comm_hook(None, default_hooks.allreduce_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if dist.get_rank() == 0:
    with torch.no_grad():
        model.module(torch.ones(2, 8))
for _ in range(3):
    optimizer.zero_grad()
    model(torch.full((2, 8), dist.get_rank() + 1.0)).sum().backward()
    assert float(next(model.parameters()).grad[0, 0]) == 3.0
    optimizer.step()
print("trained to the end", flush=True)
dist.destroy_process_group()
"""


def launch(server: ServerProcess, folder: Path, *script: str) -> subprocess.CompletedProcess[str]:
    """Run `gradwire run -- script` on two ranks."""
    return subprocess.run(
        [*TORCHRUN, str(Path(sys.executable).with_name("gradwire")), "run", "--", *script],
        # A socket's path in the spool has to stay short.
        env=environment(server) | {"GRADWIRE_SPOOL": str(folder / "s"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def view_of(server: ServerProcess, name: str) -> dict[str, Any]:
    """Return what the server knows of the run of this name."""
    client = server.operator()
    (run,) = [run for run in client.get("/api/v1/runs").json()["runs"] if run["name"] == name]
    view: dict[str, Any] = client.get(f"/api/v1/runs/{run['id']}").json()
    return view


@pytest.mark.compatibility(
    framework="`gradwire run` under torchrun",
    package="torch",
    proves="A plain DDP script without a word of Gradwire is attached: steps, shares and compression",
)
def test_script_without_a_word_of_gradwire_is_measured(server: ServerProcess, tmp_path: Path) -> None:
    script = ROOT / "examples" / "plain_ddp.py"
    assert "import gradwire" not in script.read_text()
    outcome = launch(server, tmp_path, str(script), "--steps", "300")
    assert outcome.returncode == 0, outcome.stderr
    view = view_of(server, "plain_ddp")
    assert view["summary"]["status"]["name"] == "finished"
    assert view["summary"]["step"] == 300
    assert view["throughput_unit"] == "steps"
    assert view["throughput"]["value"] > 0
    assert 0 <= view["exposed_share"]["value"] < 1
    assert view["optimizer"] == "AdamW"
    assert all(stage["seconds"] is not None for stage in view["loop"])


def test_what_a_script_raises_is_its_own(server: ServerProcess, tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    outcome = launch(server, tmp_path, str(script), "--lr", "3")
    assert outcome.returncode == 1
    assert "ArithmeticError: ['--lr', '3']" in outcome.stderr
    status = view_of(server, "fails")["summary"]["status"]
    assert (status["name"], status["detail"]) == ("failed", "ArithmeticError")


@pytest.mark.compatibility(
    framework="`gradwire run` with a communication hook of the script's own",
    package="torch",
    claim="measured",
    proves="The hook averages as before; steps, phases and the time of its communication are measured",
)
def test_model_with_a_hook_of_its_own_is_measured_and_trains_as_before(
    server: ServerProcess, tmp_path: Path
) -> None:
    script = tmp_path / "hooked.py"
    script.write_text(HOOKED)
    outcome = launch(server, tmp_path, str(script))
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("trained to the end") == 2
    reason = "the model has a communication hook of its own, allreduce_hook"
    assert outcome.stderr.count(f"gradwire: measured, not steered: {reason}") == 1
    view = view_of(server, "hooked")
    assert (view["summary"]["step"], view["is_steered"], view["trust"]["notes"][-1]) == (3, False, reason)
    # Its steps are steps like others, and none of a check.
    assert view["step_seconds"]["value"] is not None
    assert view["wire_bytes_per_second"]["value"] > 0
    send = next(stage for stage in view["loop"] if stage["name"] == "send")
    assert send["seconds"] > 0


def test_run_without_a_script_is_refused() -> None:
    outcome = subprocess.run(
        [sys.executable, "-m", "gradwire", "run"], env=os.environ, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 2
    assert "needs a script" in outcome.stderr
