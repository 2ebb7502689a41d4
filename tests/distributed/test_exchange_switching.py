"""Plans that change between two steps: what carries over, what is flushed, what is dropped."""

import pytest
import torch
from distributed.hooked import CODECS, Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

SHAPES = [(40, 70), (33,), (300, 10), (7, 9)]


def _random(generator, dtype=torch.float32):
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def _flat(tensors):
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def _follow(rank, world_size, switches, num_steps, dtype=torch.float32, plan=None):
    """Random gradients under a script of switches; one row a step, and what is owed in the end."""
    generator = torch.Generator().manual_seed(rank)
    model, exchange, script = wrap(Given(*SHAPES, dtype=dtype), plan, switches, bucket_cap_mb=0.02)
    own, applied, settling = [], [], []
    for _ in range(num_steps):
        gradients = _random(generator, dtype)
        model.zero_grad()
        model(gradients).backward()
        own.append(_flat(gradients))
        applied.append(_flat(gradients_of(model)))
        settling.append(exchange.is_settling)
    held = exchange.owed()
    owed = _flat(held.get(f"weights.{index}", torch.zeros(shape)) for index, shape in enumerate(SHAPES))
    assert not script.errors
    return {
        "own": torch.stack(own),
        "applied": torch.stack(applied),
        "settling": settling,
        "owed": owed,
        "flushes": script.flushes,
        "dropped": {step: report.residual_norm_dropped for step, report in script.reports.items()},
        "timings": script.timings,
    }


def _lost(results):
    """Norm of what was neither applied nor is owed, against the norm of all gradients."""
    wanted = sum(result["own"].sum(dim=0) for result in results) / len(results)
    owed = sum(result["owed"] for result in results) / len(results)
    return float((results[0]["applied"].sum(dim=0) + owed - wanted).norm() / wanted.norm())


def _assert_replicas_agree(results):
    assert all(torch.equal(result["applied"], results[0]["applied"]) for result in results)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("codec", [name for name in CODECS if name not in ("bf16", "fp16")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planned_change_to_none_loses_nothing(world_size, codec, dtype):
    switches = {2: (everything(codec), "carry"), 21: (Plan(), "carry")}
    results = run_ranks(world_size, _follow, switches, 60, dtype)
    _assert_replicas_agree(results)
    # Averages of bfloat16 gradients are themselves rounded to bfloat16.
    assert _lost(results) < (1e-5 if dtype == torch.float32 else 5e-3)
    for result in results:
        assert not result["owed"].any()
        ((step, num_steps, norm),) = result["flushes"]
        assert norm > 0
        assert step == 21 + num_steps
        assert result["settling"] == [21 <= number < step for number in range(1, 61)]
        assert result["dropped"] == {2: None, 21: None}


def test_flush_adds_at_most_about_one_gradient_norm_a_step():
    results = run_ranks(2, _follow, {1: (everything("onebit"), "carry"), 40: (Plan(), "carry")}, 80)
    exact = sum(result["own"] for result in results) / 2
    added = (results[0]["applied"] - exact).norm(dim=1)[39:]
    # The norm was measured on one step; the gradient of another may be smaller.
    assert float(added.max()) < 1.2 * float(exact.norm(dim=1).min())
    assert float(added.max()) > 0
    assert results[0]["flushes"][0][1] > 2


def test_none_after_the_flush_is_exact():
    results = run_ranks(2, _follow, {1: (everything("int8"), "carry"), 5: (Plan(), "carry")}, 30)
    exact = sum(result["own"] for result in results) / 2
    assert torch.allclose(results[0]["applied"][-5:], exact[-5:], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("world_size", [2, 3])
def test_codecs_hand_over_their_residuals(world_size):
    plans = [
        everything("int8"),
        everything("onebit", parameters={"block": 100}),
        # The two matrices become exempt, so that they are flushed under a lossy plan.
        everything("int8", exempt_patterns=("*.0", "*.2")),
        everything("int8", parameters={"block": 64}, exempt_patterns=("*.1",)),
    ]
    # Steps 1 and 2 stand around DDP's bucket rebuild.
    switches = {step: (plan, "carry") for step, plan in zip((1, 2, 12, 14, 30), [*plans, plans[1]], strict=True)}
    results = run_ranks(world_size, _follow, switches, 50)
    _assert_replicas_agree(results)
    assert _lost(results) < 1e-5


def test_flush_survives_the_bucket_rebuild():
    results = run_ranks(2, _follow, {1: (everything("onebit"), "carry"), 2: (Plan(), "carry")}, 20)
    _assert_replicas_agree(results)
    assert _lost(results) < 1e-5
    assert len(results[0]["flushes"]) == 1


def test_interrupted_flush_goes_on_under_the_next_plan():
    switches = {
        1: (everything("onebit"), "carry"),
        30: (Plan(), "carry"),
        32: (everything("int8"), "carry"),
        40: (Plan(), "carry"),
    }
    results = run_ranks(2, _follow, switches, 80)
    _assert_replicas_agree(results)
    assert _lost(results) < 1e-5
    assert len(results[0]["flushes"]) == 1


def test_warm_up_averages_exactly_and_then_compresses():
    results = run_ranks(2, _follow, {}, 6, torch.float32, everything("onebit", warmup_steps=3))
    exact = sum(result["own"] for result in results) / 2
    difference = (results[0]["applied"] - exact).norm(dim=1)
    assert (difference[:3] < 1e-5).all()
    assert (difference[3:] > 1).all()
    compressed = {timing.step for timing in results[0]["timings"] if timing.codec}
    assert compressed == {4, 5, 6}


def _roll_back(rank, world_size, codec, as_view, set_to_none):
    """Gradients of a rolled-back model and of plain DDP given the same local gradients; the norm dropped."""
    switches = {1: (everything(codec), "carry"), 5: (Plan(), "drop")}
    hooked, exchange, script = wrap(
        Given(*SHAPES), None, switches, bucket_cap_mb=0.02, gradient_as_bucket_view=as_view
    )
    plain = DistributedDataParallel(Given(*SHAPES), bucket_cap_mb=0.02, gradient_as_bucket_view=as_view)
    generator = torch.Generator().manual_seed(rank)
    is_equal = []
    for _ in range(9):
        gradients = _random(generator)
        for model in (hooked, plain):
            model.zero_grad(set_to_none=set_to_none)
            model(gradients).backward()
        pairs = zip(gradients_of(hooked), gradients_of(plain), strict=True)
        is_equal.append(all(torch.equal(one, other) for one, other in pairs))
    assert not script.errors
    assert not exchange.is_settling
    assert exchange.owed() == {}
    return is_equal, script.reports[5].residual_norm_dropped


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("as_view", [False, True])
@pytest.mark.parametrize("set_to_none", [False, True])
def test_rollback_is_plain_ddp_from_its_very_step(codec, as_view, set_to_none):
    for is_equal, dropped in run_ranks(3, _roll_back, codec, as_view, set_to_none):
        assert is_equal[4:] == [True] * 5
        assert not any(is_equal[:4])
        assert dropped > 0


def _toggle(rank, world_size, seed):
    """Random switches at fixed random steps while a model trains with momentum."""
    choices = torch.Generator().manual_seed(seed)
    plans = [
        Plan(),
        everything("bf16"),
        everything("fp16"),
        everything("int8"),
        everything("int4"),
        everything("topk"),
        everything("onebit"),
        Plan(codec="int8", min_elements=99),
    ]
    switches = {}
    for step in range(1, 60):
        if torch.rand((), generator=choices) < 0.4:
            plan = plans[int(torch.randint(len(plans), (), generator=choices))]
            switches[step] = (plan, "drop" if torch.rand((), generator=choices) < 0.3 else "carry")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(12, 60), torch.nn.ReLU(), torch.nn.Linear(60, 60), torch.nn.Linear(60, 2)]
    model, _, script = wrap(torch.nn.Sequential(*layers), None, switches, bucket_cap_mb=0.005)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.Generator().manual_seed(1000 + rank)
    for _ in range(60):
        optimizer.zero_grad()
        model(torch.randn(8, 12, generator=data)).square().sum().backward()
        optimizer.step()
    assert not script.errors
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    return replicas_equal(model)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("seed", [1, 2])
def test_replicas_stay_equal_whatever_is_switched_when(world_size, seed):
    assert run_ranks(world_size, _toggle, seed) == [True] * world_size
