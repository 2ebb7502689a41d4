"""Trials taken from reports of people who compress gradients, each with the right result."""

import math

import pytest
import torch
import torch.distributed as dist
from distributed.hooked import CODECS, DENSE, Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan
from gradwire_compression.codecs import registry
from torch import nn
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed


def _c01(rank, world_size, codec, bad):
    torch.manual_seed(0)
    model, exchange, script = wrap(nn.Linear(8, 8, bias=False), everything(codec))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finite = []
    for step in range(1, 11):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        (loss * (bad if step == 5 and rank == 1 else 1.0)).backward()
        finite.append(all(bool(gradient.isfinite().all()) for gradient in gradients_of(model)))
        if finite[-1]:
            optimizer.step()
    held = exchange.owed()
    assert not script.errors
    assert all(tensor.isfinite().all() for tensor in held.values())
    assert replicas_equal(model)
    return finite, script.nonfinite_parameters, script.num_nonfinite_results


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_c01_one_bad_value_is_seen_by_all_and_spoils_one_step(codec, bad):
    for rank, (finite, parameters, num_results) in enumerate(run_ranks(2, _c01, codec, bad)):
        assert finite == [step != 5 for step in range(1, 11)]
        assert parameters == ([(5, ("weight",))] if rank == 1 else [])
        assert num_results == 1


def _c03_zeros(rank, world_size, codec):
    model, _, script = wrap(Given((64, 64)), everything(codec))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(1, 5):
        optimizer.zero_grad()
        model([torch.full((64, 64), 0.0 if step < 4 else 1.0)]).backward()
        (gradient,) = gradients_of(model)
        optimizer.step()
        (weight,) = (parameter.detach().clone() for parameter in model.parameters())
        seen.append((gradient, weight))
    assert not script.errors
    return seen


@pytest.mark.parametrize("codec", CODECS)
def test_c03_zero_gradients_stay_zero(codec):
    for seen in run_ranks(2, _c03_zeros, codec):
        for gradient, weight in seen[:3]:
            assert not gradient.any()
            assert not weight.any()
        assert seen[3][0].isfinite().all()
        assert seen[3][0].any()
        if codec in DENSE:
            assert torch.allclose(seen[3][0], torch.ones(64, 64), rtol=0.01)


def _c03_rows(rank, world_size):
    model, _, script = wrap(Given((8, 4)), everything("onebit"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wanted = torch.zeros(8, 4)
    wanted[:4] = 1.0
    path = []
    for _ in range(200):
        optimizer.zero_grad()
        model([wanted]).backward()
        optimizer.step()
        path.append(next(model.parameters()).detach().clone())
    assert not script.errors
    return torch.stack(path)


def test_c03_rows_without_gradient_are_not_pushed_around():
    for path in run_ranks(2, _c03_rows):
        idle = path[:, 4:].abs().flatten(1).amax(dim=1)
        assert float(idle.max()) <= 0.02
        assert float(idle[100:].max()) <= float(idle[:100].max()) + 1e-6
        assert torch.allclose(path[-1, :4], torch.full((4, 4), -2.0), rtol=0, atol=0.02)


def _c04_fp16(rank, world_size, gradients):
    """Applied gradients of steps in which all elements of a rank are equal; `gradients` by step and rank."""
    model, _, script = wrap(Given((1024,)), everything("fp16"))
    seen = []
    for values in gradients:
        model.zero_grad()
        model([torch.full((1024,), values[rank])]).backward()
        seen.append(gradients_of(model)[0].double())
    assert not script.errors
    return torch.stack(seen), script.num_nonfinite_results


def test_c04_fp16_average_that_fits_is_right_though_the_sum_does_not():
    for seen, num_nonfinite in run_ranks(2, _c04_fp16, [[40000.0, 40000.0]] * 5):
        assert float((seen - 40000.0).abs().max()) <= 32
        assert num_nonfinite == 0


def test_c04_fp16_overflow_is_seen_by_all_and_spoils_one_step():
    # 70 000 does not fit before a magnitude is known; 900 does, and 16 times as much then does not.
    steps = [[value] * 2 for value in (70_000.0, 70_000.0, 900.0, 900.0, 900.0, 900.0, 14_400.0, 14_400.0)]
    for seen, num_nonfinite in run_ranks(2, _c04_fp16, steps):
        finite = seen.isfinite().all(dim=1)
        assert finite.tolist() == [False, *[True] * 7]
        assert num_nonfinite == 1
        wanted = torch.tensor([value for value, _ in steps], dtype=torch.float64)
        # What one step rounds off, the next one brings.
        assert torch.allclose(seen[1:].mean(dim=1), wanted[1:], rtol=1e-3, atol=32)


def test_c04_fp16_growth_beyond_the_headroom_is_seen_and_then_known():
    steps = [[value] * 2 for value in (1.0, 1.0, 7.9, 1.0, 40.0, 40.0)]
    for seen, _ in run_ranks(2, _c04_fp16, steps):
        assert seen.isfinite().all(dim=1).tolist() == [True, True, True, True, False, True]


def test_c04_fp16_tiny_gradients_add_up():
    for seen, _ in run_ranks(2, _c04_fp16, [[1e-8, 1e-8]] * 100):
        assert torch.allclose(seen.sum(dim=0), torch.full((1024,), 1e-6, dtype=torch.float64), rtol=0, atol=6e-8)


def test_c04_fp16_gradients_that_cancel_do_not_overflow():
    steps = [[1000.0, -1000.001]] * 20
    for seen, num_nonfinite in run_ranks(2, _c04_fp16, steps):
        assert num_nonfinite == 0
        assert float(seen.mean(dim=0).abs().max()) < 0.1


def _c04_tiny(rank, world_size, codec, value):
    model, _, script = wrap(Given((1024,)), everything(codec))
    seen = []
    for _ in range(5):
        model.zero_grad()
        model([torch.full((1024,), value)]).backward()
        seen.append(gradients_of(model)[0])
    assert not script.errors
    return torch.stack(seen)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("value", [1e-40, 1e-45])
def test_c04_denormal_gradients_make_no_giants(codec, value):
    for seen in run_ranks(2, _c04_tiny, codec, value):
        assert seen.isfinite().all()
        # What a step held back may come with the next one.
        assert float(seen.double().sum(dim=0).abs().max()) <= 2 * 5 * torch.tensor(value).item()


def _c05(rank, world_size, codec):
    gradient = torch.full((4096,), 1e-3)
    gradient[7] = 1e4
    model, exchange, script = wrap(Given((4096,)), everything(codec))
    seen = []
    for _ in range(10):
        model.zero_grad()
        model([gradient]).backward()
        seen.append(gradients_of(model)[0])
    assert not script.errors
    return gradient, torch.stack(seen), exchange.owed()["weights.0"]


@pytest.mark.parametrize("codec", CODECS)
def test_c05_giant_value_harms_its_own_block_only(codec):
    results = run_ranks(2, _c05, codec)
    owed = sum(residual for _, _, residual in results).double() / 2
    block = registry.make(codec, Plan(codec=codec).parameters, torch.device("cpu")).block
    for gradient, seen, _ in results:
        applied = seen.double().sum(dim=0)
        assert float((applied + owed - 10 * gradient.double()).norm() / (10 * gradient.norm())) < 1e-6
        # Beyond the giant's block, what is applied is what the others are, to the codec's own accuracy; topk is
        # still at its first round there.
        if codec in DENSE:
            assert torch.allclose(applied[block:].float(), 10 * gradient[block:], rtol=0.01)
        assert float(applied[block:].max()) <= 1.01 * 10 * 1e-3


class Heads(nn.Module):
    """A body and three heads, of which a forward uses one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Linear(6, 40)
        self.heads = nn.ModuleList(nn.Linear(40, 30) for _ in range(3))

    def forward(self, data, head):
        return self.heads[head](self.body(data))


def _c09(rank, world_size):
    hooked, _, script = wrap(Heads(), everything("onebit"), find_unused_parameters=True, bucket_cap_mb=0.002)
    plain = DistributedDataParallel(Heads(), find_unused_parameters=True, bucket_cap_mb=0.002)
    generator = torch.Generator().manual_seed(rank)
    gradients = []
    for model in (hooked, plain):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.randn(8, 6, generator=generator), rank).square().mean().backward()
            optimizer.step()
        gradients.append({name: parameter.grad for name, parameter in model.module.named_parameters()})
    assert not script.errors
    assert replicas_equal(hooked)
    unused = [dict(model.module.named_parameters())["heads.2.weight"].detach() for model in (hooked, plain)]
    return gradients, torch.equal(*unused)


def test_c09_parameters_that_some_or_no_ranks_use():
    results = run_ranks(2, _c09)
    for (hooked, plain), is_unused_equal in results:
        assert is_unused_equal
        assert [name for name in hooked if hooked[name] is None] == [name for name in plain if plain[name] is None]
        assert hooked["heads.2.weight"] is None
        for name, gradient in hooked.items():
            if gradient is not None:
                assert torch.equal(gradient, results[0][0][0][name])
                assert gradient.any()


def _c09_frozen(rank, world_size):
    module = nn.Linear(3, 3)
    module.requires_grad_(False)
    with pytest.raises(RuntimeError, match="any parameter that requires a gradient"):
        wrap(module, everything("onebit"))
    return True


def test_c09_frozen_model_gets_a_plain_message():
    assert run_ranks(1, _c09_frozen) == [True]


_SMALL = [(1,), (7,), (13,), (3, 5), (0, 4)]


def _c17(rank, world_size, codec):
    """Odd shapes, each alone and all together, under a codec and under plain DDP; returns the largest loss."""
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for shapes in [*([shape] for shape in _SMALL), _SMALL]:
        hooked, exchange, script = wrap(Given(*shapes), everything(codec))
        plain = DistributedDataParallel(Given(*shapes))
        totals = [torch.zeros(sum(torch.Size(shape).numel() for shape in shapes)) for _ in range(2)]
        norm = 1e-9
        for _ in range(5):
            gradients = [torch.randn(shape, generator=generator) for shape in shapes]
            for model, total in zip((hooked, plain), totals, strict=True):
                model.zero_grad()
                model(gradients).backward()
                assert [tuple(gradient.shape) for gradient in gradients_of(model)] == shapes
                total += torch.cat([gradient.flatten() for gradient in gradients_of(model)])
            norm += float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
        others = [torch.empty_like(totals[0]) for _ in range(world_size)]
        dist.all_gather(others, totals[0])
        assert all(torch.equal(totals[0], other) for other in others)
        owed = torch.zeros_like(totals[0])
        if held := exchange.owed():
            owed = torch.cat([tensor.flatten() for _, tensor in sorted(held.items())]) / world_size
        dist.all_reduce(owed)
        losses.append(float((totals[0] + owed - totals[1]).norm()) / norm)
        least = 2 * (world_size - 1) * totals[0].numel() * registry.facts(codec).bits_per_element / 8 / world_size
        assert all(math.floor(least) <= timing.wire_bytes < 4096 for timing in script.timings)
        assert not script.errors
        exchange.close()
    return max(losses)


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_c17_sizes_that_divide_by_nothing(codec, world_size):
    limit = {"bf16": 4e-3, "fp16": 1e-3}.get(codec, 1e-6)
    assert max(run_ranks(world_size, _c17, codec)) <= limit


def _everything(codec):
    """A plan whose every step is close; topk sends sixteen elements, all there are."""
    return everything(codec, parameters={"k": 16} if codec == "topk" else {})


def _c19(rank, world_size):
    plans = ["none", "bf16", "fp16", "int8", "fp8", "int4", "onebit", "topk", "none"]
    switches = {1 + 3 * i: (_everything(name), "carry") for i, name in enumerate(plans[:-1])}
    switches[3 * len(plans) - 2] = (Plan(), "drop")
    model, _, script = wrap(Given((4, 4)), Plan(), switches)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for _ in range(3 * len(plans)):
        optimizer.zero_grad()
        model([torch.full((4, 4), 2.0 if rank == 0 else 4.0)]).backward()
        seen.append(gradients_of(model)[0])
        optimizer.step()
    assert not script.errors
    assert replicas_equal(model)
    return torch.stack(seen)


def test_c19_every_codec_averages_once():
    for seen in run_ranks(2, _c19):
        assert (seen[:3] == 3.0).all()
        assert torch.allclose(seen, torch.full_like(seen, 3.0), rtol=0.01)
        assert torch.allclose(seen.flatten(1).norm(dim=1), torch.full((len(seen),), 12.0), rtol=0.01)
        assert (seen[-3:] == 3.0).all()


def _c20(rank, world_size):
    wanted = torch.tensor([1.0, 0.1, 0.01, 0.001])
    switches = {501: (Plan(), "carry"), 511: (everything("onebit"), "carry")}
    model, exchange, script = wrap(Given((4,)), everything("onebit"), switches)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    seen = []
    for _ in range(520):
        optimizer.zero_grad()
        model([wanted]).backward()
        seen.append(gradients_of(model)[0].double())
        optimizer.step()
    assert not script.errors
    assert not exchange.is_settling
    return torch.stack(seen), script.flushes


def test_c20_error_feedback_is_real_and_survives_the_switch():
    wanted = torch.tensor([1.0, 0.1, 0.01, 0.001], dtype=torch.float64)
    for seen, flushes in run_ranks(2, _c20, timeout=120):
        assert torch.allclose(seen[:500].mean(dim=0), wanted, rtol=0, atol=0.01)
        assert torch.allclose(seen[:510].sum(dim=0), 510 * wanted, rtol=0, atol=1e-3)
        ((_, _, norm),) = flushes
        assert norm > 0.5
        normal = float(seen[:500].norm(dim=1).max())
        assert float(seen[510:].norm(dim=1).max()) <= 2 * normal
