"""`gradwire trial` with real torchrun processes and a real server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scripted_server import wait_until
from server_process import ServerProcess, environment, server

__all__ = ["server"]

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]

# Catches whatever ends it, and draws its data anew in every run; its parameters come from the seed.
STUBBORN = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
torch.manual_seed(int.from_bytes(os.urandom(7), "little"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
while True:
    try:
        model(torch.randn(2, 8)).square().mean().backward()
        optimizer.step()
    except BaseException as error:
        print("caught", type(error).__name__, flush=True)
"""

FAILS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.randn(2, 8)).sum().backward()
optimizer.step()
raise ArithmeticError("no more")
"""


# Goes on from a checkpoint; with a second argument it saves its own over it as it trains.
RESUMES = """
import sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
path = Path(sys.argv[1])
model = torch.nn.Linear(8, 8)
if path.exists():
    model.load_state_dict(torch.load(path))
dist.barrier()
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
for step in range(30):
    ddp(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
    if len(sys.argv) > 2 and dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
"""

# Says who it is and trains until it is ended.
ENDLESS = """optimizer.step()
import os
open(f"{__file__}.{os.getpid()}", "w").close()
while True:
    model(torch.randn(2, 8)).sum().backward()
    optimizer.step()
"""

Call = tuple[list[str], dict[str, str]]


def call_of(folder: Path, *script: str, server: ServerProcess | None = None, steps: int = 20) -> Call:
    """Return command and environment of a trial of two ranks; without a server it only compares."""
    variables = {"GRADWIRE_SPOOL": str(folder / "s"), "OMP_NUM_THREADS": "1"}
    address = []
    if server is not None:
        variables["GRADWIRE_INGEST_TOKEN"] = server.ingest_token
        variables["GRADWIRE_TOKEN"] = server.operator_token
        address = ["--server", server.url]
    command = [sys.executable, "-m", "gradwire", "trial", "--json", "--steps", str(steps), *address, "--"]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    inherited = environment(server) if server else environment(ServerProcess(folder))
    inherited.pop("GRADWIRE_SERVER")
    return [*command, *launcher, *script], inherited | variables


def trial(folder: Path, *script: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a trial to its end."""
    command, variables = call_of(folder, *script, **options)
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("script", ["plain_ddp.py", "quickstart.py"])
def test_trial_is_a_pair_that_the_server_judges(script: str, server: ServerProcess, tmp_path: Path) -> None:
    outcome = trial(tmp_path, str(ROOT / "examples" / script), server=server, steps=60)
    assert outcome.returncode == 0, outcome.stderr
    told = json.loads(outcome.stdout)
    assert told["unpaired_reason"] == ""
    assert told["quality"]["state"] == "within_limit"
    assert told["quality"]["num_checks"] == 10
    assert told["num_ranks"] == 2
    assert told["speedup"]["low"] < told["speedup"]["value"] < told["speedup"]["high"]
    views = {name: _view(server, told[name]["run"]) for name in ("baseline", "candidate")}
    assert told["link"] == f"{server.url}/runs/{told['candidate']['run']}"
    assert views["candidate"]["quality"]["baseline_id"] == told["baseline"]["run"]
    assert views["baseline"]["plan"]["codec"] == "none"
    assert views["candidate"]["plan"]["codec"] == "int8"
    for name, view in views.items():
        assert (view["summary"]["status"]["name"], view["summary"]["step"]) == ("finished", 60), name
    for view in views.values():
        machines = view["machines"]
        (node,) = machines["nodes"]
        assert node["window"]["num_cores"] == machines["machine"]["num_cores"] > 0
        assert node["window"]["memory_used_bytes"] > 0
        assert machines["useful_share"]["value"] > 0
    assert views["candidate"]["machines"]["nodes"][0]["codec_share"]["value"] > 0
    # The first step is the same in both, and compression changes the later ones.
    first, last = zip(*(_losses(server, view["summary"]["id"]) for view in views.values()), strict=True)
    assert first[0] == first[1]
    assert last[0] != last[1]


def test_script_that_cannot_be_paired_is_told_and_one_that_will_not_end_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN)
    outcome = trial(tmp_path, str(path))
    assert outcome.returncode == 1, outcome.stderr
    told = json.loads(outcome.stdout)
    assert "draws its data from something else than its seed" in told["unpaired_reason"]
    assert told["quality"] is None
    assert told["baseline"]["num_steps"] == told["candidate"]["num_steps"] == 20
    assert outcome.stderr.count("caught TrialEnd") == 4


def test_script_that_goes_on_from_its_own_checkpoint_is_no_pair(tmp_path: Path) -> None:
    script, checkpoint = tmp_path / "resumes.py", tmp_path / "model.pt"
    script.write_text(RESUMES)
    outcome = trial(tmp_path, str(script), str(checkpoint), "save")
    assert outcome.returncode == 1, outcome.stderr
    assert "rank 0 began with other parameters" in json.loads(outcome.stdout)["unpaired_reason"]
    assert checkpoint.exists()
    told = json.loads(trial(tmp_path, str(script), str(checkpoint)).stdout)
    assert told["unpaired_reason"] == ""
    # Nothing is judged without a server.
    assert told["quality"] is None


def test_failing_script_ends_the_trial(tmp_path: Path) -> None:
    path = tmp_path / "fails.py"
    path.write_text(FAILS)
    outcome = trial(tmp_path, str(path))
    assert outcome.returncode == 1
    assert "ArithmeticError: no more" in outcome.stderr
    assert "the uncompressed run ended with exit code 1; there is nothing to compare" in outcome.stderr
    assert outcome.stdout == ""


def test_interrupted_trial_leaves_no_process(tmp_path: Path) -> None:
    path = tmp_path / "endless.py"
    path.write_text(FAILS.replace("optimizer.step()\n", ENDLESS))
    command, variables = call_of(tmp_path, str(path), steps=1_000_000)
    process = subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    # Their lines on the console may begin in the midst of others'.
    wait_until(lambda: len(list(tmp_path.glob("endless.py.*"))) == 2, 60.0)
    pids = [int(file.suffix[1:]) for file in tmp_path.glob("endless.py.*")]
    # As Ctrl-C in a terminal does: everybody of the terminal's group is told.
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 130
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 30.0)


def _view(server: ServerProcess, run: str) -> dict[str, Any]:
    view: dict[str, Any] = server.operator().get(f"/api/v1/runs/{run}").json()
    return view


def _losses(server: ServerProcess, run: str) -> tuple[float, float]:
    answer = server.operator().get(f"/api/v1/runs/{run}/series", params={"name": "loss", "max_buckets": 100})
    assert answer.status_code == 200, answer.text
    points = answer.json()["points"]
    return points[0]["last"], points[-1]["last"]
