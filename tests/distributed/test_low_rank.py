"""The low-rank average on real ranks: what it applies, remembers, sends, and what it does with bad gradients."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from distributed import test_exchange_cost as cost
from distributed import test_exchange_switching as switching
from distributed.hooked import Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan, PlanError
from gradwire_compression.collectives.exact import exact_wire_bytes
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

# Two of equal height, one wide, one tall, and one that no rank pays for.
SHAPES = [(40, 70), (40, 30), (33,), (300, 10), (3, 5)]


def low_rank(rank=1, **fields):
    return everything("powersgd", parameters={"rank": rank}, **fields)


def _random(generator, dtype=torch.float32):
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def _thin(rank, dtype):
    """Constant gradients of rank two, which differ between ranks in both factors."""
    generator = torch.Generator().manual_seed(rank)
    made = []
    for shape in SHAPES:
        if len(shape) == 1:
            made.append(torch.randn(shape, generator=generator).to(dtype))
        else:
            left, right = (
                torch.randn(shape[0], 2, generator=generator),
                torch.randn(2, shape[1], generator=generator),
            )
            made.append((left @ right).to(dtype))
    return made


def _steady(rank, world_size, dtype, num_steps):
    gradients = _thin(rank, dtype)
    model, exchange, script = wrap(Given(*SHAPES, dtype=dtype), low_rank(2), bucket_cap_mb=0.02)
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    norms = []
    for _ in range(num_steps):
        model.zero_grad()
        model(gradients).backward()
        total = [sum_ + gradient for sum_, gradient in zip(total, gradients_of(model), strict=True)]
        held = exchange.owed()
        norms.append(sum(float(tensor.double().norm()) ** 2 for tensor in held.values()) ** 0.5)
    assert not script.errors
    return total, gradients, norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("world_size", [2, 3])
def test_mean_over_time_is_right_and_the_residual_stops_growing(world_size, dtype):
    results = run_ranks(world_size, _steady, dtype, 100)
    for index in range(len(SHAPES)):
        exact = sum(gradients[index].double() for _, gradients, _ in results) / world_size
        error = float((results[0][0][index] / 100 - exact).norm() / exact.norm())
        assert error < (0.05 if dtype == torch.float32 else 0.06)
        assert all(torch.equal(total[index], results[0][0][index]) for total, _, _ in results)
    for _, _, norms in results:
        assert max(norms[80:]) < 1.25 * max(norms[20:50])


def _conserve(rank, world_size):
    generator = torch.Generator().manual_seed(rank)
    model, exchange, script = wrap(Given(*SHAPES), low_rank(), bucket_cap_mb=0.02)
    own, applied = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES], None
    applied = [tensor.clone() for tensor in own]
    for _ in range(12):
        gradients = _random(generator)
        model.zero_grad()
        model(gradients).backward()
        for index, gradient in enumerate(gradients_of(model)):
            own[index] += gradients[index]
            applied[index] += gradient
    held = exchange.owed()
    assert not script.errors
    owed = [held.get(f"weights.{index}", torch.zeros(shape)) for index, shape in enumerate(SHAPES)]
    return own, owed, applied


@pytest.mark.parametrize("world_size", [2, 3])
def test_what_is_applied_and_what_is_owed_add_up_to_the_gradients(world_size):
    results = run_ranks(world_size, _conserve)
    for index in range(len(SHAPES)):
        wanted = sum(own[index] for own, _, _ in results) / world_size
        got = results[0][2][index] + sum(owed[index].double() for _, owed, _ in results) / world_size
        assert float((got - wanted).norm() / wanted.norm()) < 1e-6
    # Exempt tensors owe nothing: a vector, and a matrix whose factors would save too little.
    assert all(not owed[2].any() and not owed[4].any() for _, owed, _ in results)
    assert all(owed[0].any() for _, owed, _ in results)


def _count(rank, world_size, shapes, plan):
    model, exchange, script = wrap(Given(*shapes), plan)
    for _ in range(3):
        model([torch.randn(shape) for shape in shapes]).backward()
    assert not script.errors
    last = [timing for timing in script.timings if timing.step == 3]
    assert {operation for timing in last for _, _, operation in timing.codec} == {"encode", "decode"}
    return (
        sum(timing.wire_bytes for timing in last),
        exchange.weigh(plan).memory_bytes,
        exchange.prepare(plan).memory_bytes,
    )


@pytest.mark.parametrize("world_size", [2, 3])
def test_wire_and_memory_are_counted_exactly(world_size):
    shapes = [(64, 1024), (100,), (200, 300)]
    for wire, told, taken in run_ranks(world_size, _count, shapes, Plan(codec="powersgd", parameters={"rank": 3})):
        left, right, exempt = 4 * 3 * (64 + 200), 4 * 3 * (1024 + 300), 4 * 100
        assert wire == sum(exact_wire_bytes(size, world_size) for size in (left, right, exempt))
        numel = 64 * 1024 + 200 * 300
        # A residual, the warm starts, the factors, and those on their way.
        assert told == taken == 4 * numel + right + 2 * (left + right) + exempt


def _single(rank, world_size):
    gradients = [torch.full(shape, 2.0) for shape in SHAPES]
    model, _, script = wrap(Given(*SHAPES), low_rank())
    model(gradients).backward()
    assert not script.errors
    return all(torch.equal(one, other) for one, other in zip(gradients_of(model), gradients, strict=True))


def test_single_rank_keeps_its_own_gradients():
    assert run_ranks(1, _single) == [True]


def _zeros(rank, world_size):
    model, _, script = wrap(Given((64, 64)), everything("powersgd"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = []
    for step in range(1, 5):
        optimizer.zero_grad()
        model([torch.full((64, 64), 0.0 if step < 4 else 1.0)]).backward()
        optimizer.step()
        seen.append((gradients_of(model)[0], next(model.parameters()).detach().clone()))
    assert not script.errors
    return seen


def test_c03_zero_gradients_stay_zero_and_the_next_ones_come_through():
    for seen in run_ranks(2, _zeros):
        for gradient, weight in seen[:3]:
            assert not gradient.any()
            assert not weight.any()
        assert torch.allclose(seen[3][0], torch.ones(64, 64), rtol=0.01)


def _zero_here(rank, world_size):
    """Only rank 0 has a gradient in step 3; returns what is owed around it, and what was applied."""
    model, exchange, script = wrap(Given((40, 70)), low_rank())
    generator = torch.Generator().manual_seed(rank)
    owed = []
    for step in range(1, 4):
        model.zero_grad()
        gradient = torch.randn(40, 70, generator=generator)
        model([torch.zeros(40, 70) if step == 3 and rank == 1 else gradient]).backward()
        owed.append(exchange.owed()["weights.0"])
    assert not script.errors
    return owed, gradients_of(model)[0], replicas_equal(model)


def test_rank_whose_gradient_is_zero_sends_nothing_and_keeps_its_residual():
    (owed0, first, _), (owed1, second, _) = run_ranks(2, _zero_here)
    assert not torch.equal(owed0[1], owed0[2])
    assert torch.equal(owed1[1], owed1[2])
    assert torch.equal(first, second)
    assert first.any()


def _c01(rank, world_size, bad):
    torch.manual_seed(0)
    model, exchange, script = wrap(torch.nn.Linear(8, 8, bias=False), low_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    finite, states = [], []
    for step in range(1, 11):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        (loss * (bad if step == 5 and rank == 1 else 1.0)).backward()
        finite.append(all(bool(gradient.isfinite().all()) for gradient in gradients_of(model)))
        states.append((exchange.owed()["weight"], *exchange._active.warm_starts.copies().values()))
        if finite[-1]:
            optimizer.step()
    assert not script.errors
    assert all(tensor.isfinite().all() for state in states for tensor in state)
    # The residual after the bad step is the one before it, right to rounding, and the directions are bit for bit.
    torch.testing.assert_close(states[3][0], states[4][0], rtol=1e-5, atol=1e-6)
    assert torch.equal(states[3][1], states[4][1])
    assert not all(torch.equal(one, other) for one, other in zip(states[4], states[5], strict=True))
    assert replicas_equal(model)
    return finite, script.nonfinite_parameters, script.num_nonfinite_results


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_c01_one_bad_value_is_seen_by_all_and_spoils_one_step(bad):
    for rank, (finite, parameters, num_results) in enumerate(run_ranks(2, _c01, bad)):
        assert finite == [step != 5 for step in range(1, 11)]
        assert parameters == ([(5, ("weight",))] if rank == 1 else [])
        assert num_results == 1


def _c17(rank, world_size, codec_rank):
    """Each odd shape alone and all together; empty and tiny ones stay exact."""
    shapes = [(1,), (7,), (13,), (3, 5), (0, 4), (), (13, 29), (29, 3, 5)]
    generator = torch.Generator().manual_seed(rank)
    for chosen in [*([shape] for shape in shapes), shapes]:
        model, exchange, script = wrap(Given(*chosen), low_rank(codec_rank))
        for _ in range(5):
            model.zero_grad()
            model([torch.randn(shape, generator=generator) for shape in chosen]).backward()
            assert [tuple(gradient.shape) for gradient in gradients_of(model)] == list(chosen)
            assert all(gradient.isfinite().all() for gradient in gradients_of(model))
            for gradient in gradients_of(model):
                mean = gradient.clone()
                dist.all_reduce(mean)
                assert torch.allclose(mean / world_size, gradient, rtol=1e-6)
        assert not script.errors
        exchange.close()
    return True


@pytest.mark.parametrize("codec_rank", [1, 4, 32])
@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_c17_odd_empty_and_scalar_tensors(world_size, codec_rank):
    assert run_ranks(world_size, _c17, codec_rank) == [True] * world_size


def _c19(rank, world_size):
    switches = {4: (low_rank(4), "carry"), 7: (Plan(), "carry")}
    model, _, script = wrap(Given((4, 4), (40, 40)), Plan(), switches)
    seen = []
    for _ in range(12):
        model.zero_grad()
        model([torch.full(shape, 2.0 if rank == 0 else 4.0) for shape in ((4, 4), (40, 40))]).backward()
        seen.append(gradients_of(model))
    assert not script.errors
    return seen


def test_c19_averages_once():
    for seen in run_ranks(2, _c19):
        for step, gradients in enumerate(seen):
            for gradient in gradients:
                assert torch.allclose(gradient, torch.full_like(gradient, 3.0), rtol=0.01)
                assert step not in (0, 1, 2) or (gradient == 3.0).all()


class _Strided(torch.nn.Module):
    """Weights that lie in memory in other orders than their dimensions."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.convolution = torch.nn.Parameter(torch.zeros(16, 8, 3, 3).to(memory_format=torch.channels_last))
        self.transposed = torch.nn.Parameter(torch.zeros(30, 20).t())

    def forward(self, wanted):
        return (self.convolution * wanted[0]).sum() + (self.transposed * wanted[1]).sum()


def _strided(rank, world_size):
    """Gradients of rank one, the same on both ranks, come through in one step if the matrices are what they are."""
    generator = torch.Generator().manual_seed(0)
    wanted = [
        torch.outer(torch.randn(16, generator=generator), torch.randn(72, generator=generator)).view(16, 8, 3, 3),
        torch.outer(torch.randn(20, generator=generator), torch.randn(30, generator=generator)),
    ]
    model, exchange, script = wrap(_Strided(), low_rank())
    for _ in range(3):
        model.zero_grad()
        model(wanted).backward()
        errors = [
            float((got - want).norm() / want.norm()) for got, want in zip(gradients_of(model), wanted, strict=True)
        ]
    assert not script.errors
    held = exchange.owed()
    assert [held[name].shape for name in ("convolution", "transposed")] == [(16, 8, 3, 3), (20, 30)]
    return max(errors)


def test_matrices_follow_the_strides_of_their_parameters():
    assert max(run_ranks(2, _strided)) < 1e-5


def _rebuild(rank, world_size):
    """The directions of a parameter before and after DDP deals its buckets out anew, and under another plan."""
    switches = {6: (low_rank(exempt_patterns=("*.3",)), "carry"), 8: (Plan(), "drop")}
    model, exchange, script = wrap(Given(*SHAPES), low_rank(), switches, bucket_cap_mb=0.002)
    generator = torch.Generator().manual_seed(rank)
    hashes, directions = [], []
    for _ in range(8):
        model.zero_grad()
        model(_random(generator)).backward()
        exchange.state_dict()
        hashes.append(exchange.layout_hash())
        directions.append(exchange._active.warm_starts.copies().get("weights.0"))
    assert not script.errors
    return hashes, directions


def test_directions_survive_rebuild_and_change_of_plan_and_are_equal_on_all_ranks():
    (hashes, first), (_, second) = run_ranks(2, _rebuild)
    assert hashes[0] != hashes[1]
    for one, other in zip(first[:7], second[:7], strict=True):
        assert torch.equal(one, other)
    assert first[7] is None
    # Random gradients turn a direction by a part of it, a new start would be unrelated.
    assert all(not torch.equal(one, other) for one, other in pairwise(first[:7]))


def _bias_under_drift(rank, world_size, ours):
    """Relative error of the averaged bfloat16 bias at the last of 300 steps of constant gradients."""
    shapes = [(64, 64), (64,)]
    generator = torch.Generator().manual_seed(rank)
    wanted = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    if ours:
        model, exchange, script = wrap(Given(*shapes, dtype=torch.bfloat16), Plan(codec="powersgd"))
    else:
        model = DistributedDataParallel(Given(*shapes, dtype=torch.bfloat16))
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=4, start_powerSGD_iter=2, orthogonalization_epsilon=1e-8
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(300):
        model.zero_grad()
        model(wanted).backward()
    exact = wanted[1].double()
    dist.all_reduce(exact)
    exact /= world_size
    if ours:
        assert not script.errors
        held = {name: float(tensor.norm()) for name, tensor in exchange.owed().items()}
    else:
        (error,) = state.error_dict.values()
        held = {"bias": float(error[-64:].norm())}
    return float((gradients_of(model)[1].double() - exact).norm() / exact.norm()), held


def test_bias_drifts_under_the_hook_of_pytorch_and_not_under_ours():
    theirs, ours = run_ranks(2, _bias_under_drift, False), run_ranks(2, _bias_under_drift, True)
    for error, held in theirs:
        assert error > 0.05
        assert held["bias"] > 100
    for error, held in ours:
        assert error < 0.005
        assert set(held) == {"weights.0"}


def test_decisions_say_why_a_matrix_stays_exact():
    decisions = Plan(codec="powersgd", min_elements=0, exempt_1d=False).resolve(
        [("wide", torch.zeros(40, 70)), ("small", torch.zeros(7, 9)), ("bias", torch.zeros(33))]
    )
    assert [(decision.codec, decision.reason) for decision in decisions] == [
        ("powersgd", ""),
        ("exact", "rank 4 saves too little on a 7 x 9 matrix"),
        ("exact", "rank 4 saves too little on a 33 x 1 matrix"),
    ]


@pytest.mark.parametrize("rank", [0, 33, 4.0, True])
def test_rank_out_of_range_is_refused(rank):
    with pytest.raises(PlanError, match=r"powersgd.rank is .*; wanted: int from 1 to 32"):
        Plan(codec="powersgd", parameters={"rank": rank})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_planned_change_to_none_loses_nothing(dtype):
    switches = {2: (low_rank(2), "carry"), 21: (Plan(), "carry")}
    results = run_ranks(2, switching._follow, switches, 70, dtype)
    assert switching._lost(results) < (1e-5 if dtype == torch.float32 else 5e-3)
    for result in results:
        assert not result["owed"].any()
        assert len(result["flushes"]) == 1


@pytest.mark.parametrize("world_size", [2, 3])
def test_residuals_are_handed_over_from_and_to_other_codecs(world_size):
    plans = [everything("int8"), low_rank(2), everything("onebit"), low_rank(1), low_rank(3), everything("fp8")]
    switches = {step: (plan, "carry") for step, plan in zip((1, 3, 9, 15, 20, 25), plans, strict=True)}
    results = run_ranks(world_size, switching._follow, switches, 27)
    assert switching._lost(results) < 1e-5
    assert all(torch.equal(result["applied"], results[0]["applied"]) for result in results)


@pytest.mark.parametrize("as_view", [False, True])
def test_rollback_is_plain_ddp_from_its_very_step(as_view):
    for is_equal, dropped in run_ranks(3, switching._roll_back, "powersgd", as_view, True):
        assert is_equal[4:] == [True] * 5
        assert not any(is_equal[:4])
        assert dropped > 0


def test_steady_step_allocates_nothing_large():
    # Two matrices of no common height, so that the largest thing made anew is one of their factors.
    assert max(run_ranks(2, cost._allocations, "powersgd")) <= 4 * 4 * 700 + 8192
