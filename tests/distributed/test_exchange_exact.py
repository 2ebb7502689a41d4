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


class _EveryOther(Silence):
    """Watches the buckets of every other step."""

    def __init__(self):
        self.num_begun = self.num_ended = 0
        self.steps = set()

    @property
    def watches_buckets(self):
        return self.num_begun % 2 == 1

    def begin_sync(self):
        self.num_begun += 1

    def end_sync(self):
        self.num_ended += 1

    def bucket_ready(self, view):
        self.steps.add(self.num_begun)

    def bucket_done(self, timing):
        self.steps.add(timing.step)


def _train(rank, world_size, as_view, set_to_none, with_hook, observer=None):
    model = DistributedDataParallel(_model(), bucket_cap_mb=0.01, gradient_as_bucket_view=as_view)
    if with_hook:
        exchange = Exchange(
            list(model.module.named_parameters()),
            model.process_group,
            plan=Plan(),
            optimizer_class="SGD",
            observer=observer or Silence(),
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


def _train_half_watched(rank, world_size, as_view):
    observer = _EveryOther()
    plain = _train(rank, world_size, as_view, True, with_hook=False)
    hooked = _train(rank, world_size, as_view, True, with_hook=True, observer=observer)
    is_equal = all(torch.equal(one, other) for one, other in zip(plain, hooked, strict=True))
    return is_equal, observer.num_ended, observer.steps


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("as_view", [False, True])
def test_steps_that_nobody_watches_are_averaged_alike_and_told_of_nobody(world_size, as_view):
    outcome = run_ranks(world_size, _train_half_watched, as_view)
    assert outcome == [(True, 6, {1, 3, 5})] * world_size
