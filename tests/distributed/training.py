"""Small training loops that distributed tests of the agent share."""

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradwire
import torch
from gradwire.steering import cadence
from gradwire_compression.costs import Line, Link, Links
from torch import nn
from torch.nn.parallel import DistributedDataParallel

# A kilobyte takes a second, whoever sends it.
SLOW = Links(Link(Line(0.0, 1e-3), Line(0.0, 1e-3)))


def make_model(*, width: int = 64, **ddp_arguments: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Return the same small MLP and SGD on every rank; several buckets, 1-D and large tensors."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU())
    net.append(nn.Linear(width, 1))
    ddp = DistributedDataParallel(net, bucket_cap_mb=0.008, **ddp_arguments)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1e-3)


def pulse_with_every_exchange() -> None:
    """Let every exchange of this process carry a pulse, however short the steps are."""
    cadence.PULSE_SECONDS = 1e-6


def attach(
    ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer | None, folder: str, **arguments: Any
) -> Any:
    """Attach with the spool under `folder`, as over a link so slow that every bucket is worth compressing."""
    session = gradwire.attach(ddp, optimizer=optimizer, spool=Path(folder) / "spool", **arguments)
    session._steering._exchange().decide_by(SLOW)
    return session


def batch(rank: int, step: int) -> torch.Tensor:
    """Return this rank's own batch of a step."""
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(1000 * step + rank))


def train_step(ddp: DistributedDataParallel, optimizer: torch.optim.Optimizer, data: torch.Tensor) -> torch.Tensor:
    """Run one step and return its loss."""
    optimizer.zero_grad()
    loss: torch.Tensor = ddp(data).square().mean()
    loss.backward()
    optimizer.step()
    return loss


def random_delay(rank: int, seconds: float) -> Callable[[], None]:
    """Return a function that sleeps up to `seconds`, differently on every rank."""
    chance = random.Random(rank)
    return lambda: time.sleep(chance.random() * seconds)


def flat(model: nn.Module) -> torch.Tensor:
    """Return all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


def tell(folder: str | Path, name: str, value: object) -> None:
    """Write a file that another process looks for, so that it finds the whole value or none."""
    draft = Path(folder, f"{name}.new")
    draft.write_text(str(value))
    draft.rename(Path(folder, name))


def changes(history: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return (step, codec) wherever the codec differs from the step before."""
    return [now for before, now in zip([(0, ""), *history], history, strict=False) if before[1] != now[1]]
