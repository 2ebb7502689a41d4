"""Training that another framework exchanges for: one line says so, names it and what to do."""

from typing import Any

import gradwire
import pytest
import torch
from distributed.ranks import run_ranks
from gradwire.foreign import declare
from torch import nn

pytestmark = pytest.mark.distributed

REFUSED = "`attach` refuses in one line that names it and what to do; its communication stays unknown"


def _refusal(model: Any) -> str:
    try:
        gradwire.attach(model)
    except gradwire.UnsteerableError as error:
        return str(error)
    return "attached"


def _sharded(rank: int, world_size: int) -> dict[str, str]:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (world_size,))
    whole, inside = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4))
    fully_shard(whole, mesh=mesh)
    fully_shard(inside[0], mesh=mesh)
    columns = parallelize_module(nn.Sequential(nn.Linear(4, 4)), mesh, {"0": ColwiseParallel()})
    stage = PipelineStage(nn.Linear(4, 4), rank, world_size, torch.device("cpu"))
    return {
        "FSDP1": _refusal(FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))),
        "FSDP2": _refusal(whole),
        "FSDP2 inside": _refusal(inside),
        "tensor parallelism": _refusal(columns),
        "pipeline parallelism": _refusal(stage),
        "pipeline schedule": _refusal(ScheduleGPipe(stage, n_microbatches=2)),
        "DataParallel": _refusal(nn.DataParallel(nn.Linear(4, 4))),
        "a plain module": _refusal_of_plain(nn.Linear(4, 4)),
    }


def _refusal_of_plain(model: nn.Module) -> str:
    try:
        gradwire.attach(model)  # type: ignore[arg-type]
    except gradwire.UnsteerableError:
        return "taken for another framework's"
    except gradwire.AttachError as error:
        return str(error)
    return "attached"


@pytest.mark.compatibility(framework="FSDP1 and FSDP2", package="torch", claim="unknown", proves=REFUSED)
@pytest.mark.compatibility(framework="Tensor parallelism", package="torch", claim="unknown", proves=REFUSED)
@pytest.mark.compatibility(framework="Pipeline parallelism", package="torch", claim="unknown", proves=REFUSED)
def test_models_that_torch_shards_are_declared_by_name() -> None:
    for said in run_ranks(2, _sharded):
        assert said.pop("a plain module").endswith("wanted: a torch.nn.parallel.DistributedDataParallel model")
        for name, text in said.items():
            framework = name.replace(" inside", "").replace("schedule", "parallelism")
            assert f" of {framework}, which exchanges gradients by itself" in text, name
            assert "DistributedDataParallel" in text
            assert "\n" not in text


def _of_packages(rank: int, world_size: int) -> dict[str, str]:
    """Models that only a GPU can train; their classes are the real ones, made without what needs it."""
    from deepspeed.runtime.engine import DeepSpeedEngine
    from deepspeed.runtime.pipe.engine import PipelineEngine
    from megatron.core.distributed import DistributedDataParallel

    class Ours(DeepSpeedEngine):  # type: ignore[misc]
        pass

    kinds = (DeepSpeedEngine, PipelineEngine, DistributedDataParallel, Ours)
    refusals = {kind.__name__: _refusal(kind.__new__(kind)) for kind in kinds}
    return {**refusals, "chunks": _refusal([DistributedDataParallel.__new__(DistributedDataParallel)])}


@pytest.mark.compatibility(framework="DeepSpeed", package="deepspeed", claim="unknown", proves=REFUSED)
@pytest.mark.compatibility(framework="Megatron-LM", package="megatron-core", claim="unknown", proves=REFUSED)
def test_models_of_packages_that_train_on_gpus_are_declared_by_name() -> None:
    (said,) = run_ranks(1, _of_packages, environment={"DS_ACCELERATOR": "cpu"})
    assert "attach got a DeepSpeedEngine of DeepSpeed, which" in said["DeepSpeedEngine"]
    assert "attach got a PipelineEngine of DeepSpeed, which" in said["PipelineEngine"]
    assert "attach got a Ours of DeepSpeed, which" in said["Ours"]
    assert "attach got a DistributedDataParallel of Megatron-LM, which" in said["DistributedDataParallel"]
    assert said["chunks"] == said["DistributedDataParallel"]


def test_name_that_only_begins_alike_is_nobodys() -> None:
    kind = type("DeepSpeedEngine", (nn.Module,), {"__module__": "deepspeedy.runtime.engine"})
    assert declare(kind()) == ""
    assert declare(nn.Linear(2, 2)) == ""
