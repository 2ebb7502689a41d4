"""`gradwire run` with scripts whose DDP model a framework makes, or nobody, in ranks that have it loaded."""

import os
import sys
from pathlib import Path

import pytest
from distributed.ranks import preload, run_ranks
from integrations.spools import Left
from integrations.test_lightning import LAUNCHED

pytestmark = pytest.mark.distributed
preload("accelerate", "lightning.pytorch", "transformers.trainer", "transformers.models.bert.modeling_bert")

TRAINER = """
import sys
from integrations.test_transformers import Data, make_trainer
make_trainer(sys.argv[1], [], Data()).train()
"""

TRAINER_WITH_CALLBACK = """
import sys
from gradwire.integrations.transformers import GradwireCallback
from integrations.test_transformers import Data, make_trainer
make_trainer(sys.argv[1], [GradwireCallback()], Data()).train()
"""

LIGHTNING = """
import sys
from integrations.test_lightning import loader, make_module, make_trainer
make_trainer(sys.argv[1], []).fit(make_module(), loader(64), loader(16))
"""

SHARDED = """
import torch
from torch.distributed.fsdp import fully_shard
net = torch.nn.Sequential(torch.nn.Linear(4, 4))
fully_shard(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
net(torch.ones(2, 4)).sum().backward()
optimizer.step()
"""


def _run(rank: int, world_size: int, folder: str, script: str) -> None:
    from gradwire.launch import run_script

    path = Path(folder) / "train.py"
    path.write_text(script)
    os.environ["GRADWIRE_SPOOL"] = f"{folder}/spool"
    sys.path.append(str(Path(__file__).parents[1]))
    with Path(f"{folder}/stderr{rank}").open("w") as stderr:
        os.dup2(stderr.fileno(), sys.stderr.fileno())
    run_script([str(path), f"{folder}/out"])


def run(folder: Path, script: str) -> list[str]:
    """Run the script on two ranks and return what Gradwire says."""
    run_ranks(2, _run, str(folder), script, environment=LAUNCHED)
    said = "".join((folder / f"stderr{rank}").read_text() for rank in range(2))
    return [line for line in said.splitlines() if line.startswith("gradwire:")]


@pytest.mark.compatibility(
    framework="`gradwire run` with a Hugging Face Trainer",
    package="transformers",
    proves="A script without a word of Gradwire is attached: steps, shares and compression; its loss is unknown",
)
def test_run_attaches_to_the_model_of_a_trainer(tmp_path: Path) -> None:
    run(tmp_path, TRAINER)
    check(Left(tmp_path / "spool"), num_steps=8)


@pytest.mark.compatibility(
    framework="`gradwire run` with Lightning",
    package="lightning",
    proves="A script without a word of Gradwire is attached: steps, shares and compression; its loss is unknown",
)
def test_run_attaches_to_the_model_of_lightning(tmp_path: Path) -> None:
    run(tmp_path, LIGHTNING)
    check(Left(tmp_path / "spool"), num_steps=12)


def check(left: Left, num_steps: int) -> None:
    assert left.started.run_name == "train"
    assert left.started.is_steered
    assert sum(window.num_steps for window in left.windows) == num_steps
    assert sum(window.wire_bytes for window in left.windows) > 0
    assert sum(window.seconds.forward for window in left.windows) > 0
    assert (sum(window.samples for window in left.windows), left.values("loss")) == (0, {})
    assert (left.ended.status, left.ended.last_step) == ("finished", num_steps)


def test_run_does_nothing_twice_where_a_callback_attaches(tmp_path: Path) -> None:
    said = run(tmp_path, TRAINER_WITH_CALLBACK)
    left = Left(tmp_path / "spool")
    assert left.started.run_name == "out"
    assert set(left.values("loss")) == set(range(1, 9))
    assert [line.split()[1:3] for line in said] == [["attached", "to"], ["out", "finished"]]


def test_run_says_once_why_nothing_was_measured(tmp_path: Path) -> None:
    (said,) = run(tmp_path, SHARDED)
    assert not (tmp_path / "spool").exists()
    assert "nothing was measured: no model was wrapped in torch.nn.parallel.DistributedDataParallel" in said
    assert "sharded by FSDP2 or tensor parallelism" in said
