"""An agent that only measures leaves no trace in the model."""

from typing import Any

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, batch, flat, make_model, pulse_with_every_exchange
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

NUM_STEPS = 200


def _train(rank: int, ddp: DistributedDataParallel, session: Any) -> torch.Tensor:
    """Train with everything that could differ: momentum, dropout's random numbers, accumulation, evaluation."""
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(NUM_STEPS):
        with ddp.no_sync():
            ddp(batch(rank, 2 * step)).square().mean().backward()
        noisy = torch.nn.functional.dropout(batch(rank, 2 * step + 1), 0.1)
        loss = ddp(noisy).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if session is not None:
            if step % 50 == 0:
                with session.pause("evaluation"), torch.no_grad():
                    session.evaluate(error=float(ddp.module(batch(rank, 0)).square().mean()))
            session.step(loss=loss, samples=16)
    return torch.cat([flat(ddp), torch.rand(4)])


def _with_and_without(rank: int, world_size: int, folder: str) -> list[torch.Tensor]:
    pulse_with_every_exchange()
    plain = _train(rank, make_model()[0], None)
    ddp, _ = make_model()
    with attach(ddp, None, folder) as session:
        measured = _train(rank, ddp, session)
    return [plain, measured]


@pytest.mark.parametrize("world_size", [2, 3])
def test_weights_and_random_numbers_are_bit_equal_with_and_without_the_agent(world_size, tmp_path):
    weights = run_ranks(world_size, _with_and_without, str(tmp_path), timeout=120)
    for plain, measured in weights:
        assert plain.isfinite().all()
        assert torch.equal(plain, measured)
    # All ranks hold one model; only their random numbers differ.
    assert torch.equal(weights[0][0][:-4], weights[1][0][:-4])
    assert not torch.equal(weights[0][0][-4:], weights[1][0][-4:])
