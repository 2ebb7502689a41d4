"""Plan `none` against DDP without a hook, bit for bit."""

import pytest
import torch
from distributed.ranks import run_ranks
from gradwire_compression import Exchange, Plan, Silence, ddp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(33, 65), nn.ReLU(), nn.Linear(65, 70), nn.ReLU(), nn.Linear(70, 5))


def _train(rank, world_size, as_view, set_to_none, with_hook):
    model = DistributedDataParallel(_model(), bucket_cap_mb=0.01, gradient_as_bucket_view=as_view)
    if with_hook:
        exchange = Exchange(
            list(model.module.named_parameters()),
            model.process_group,
            plan=Plan(),
            optimizer_class="SGD",
            observer=Silence(),
        )
        ddp.attach_ddp(model, exchange)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    for step in range(6):
        # Freeing the gradients in some steps only mixes kept and copied gradients in one bucket.
        optimizer.zero_grad(set_to_none=set_to_none if step % 3 else True)
        if set_to_none is False and step == 4:
            next(model.parameters()).grad = None
        for is_synchronised in (False, True):
            with model.no_sync() if not is_synchronised else torch.enable_grad():
                model(torch.randn(8, 33, generator=generator)).square().sum().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def _train_both(rank, world_size, as_view, set_to_none):
    plain = _train(rank, world_size, as_view, set_to_none, with_hook=False)
    hooked = _train(rank, world_size, as_view, set_to_none, with_hook=True)
    return all(torch.equal(one, other) for one, other in zip(plain, hooked, strict=True))


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_none_is_bit_equal_to_plain_ddp(world_size, as_view, set_to_none):
    assert run_ranks(world_size, _train_both, as_view, set_to_none) == [True] * world_size
