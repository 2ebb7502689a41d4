"""Gradients that are not finite, ranks that die, observers that raise, and models that are saved meanwhile."""

import copy
import io
import os

import pytest
import torch
import torch.distributed as dist
from distributed.hooked import CODECS, Given, everything, gradients_of, wrap
from distributed.ranks import run_ranks
from gradwire_compression import (
    CompressionError,
    Exchange,
    ExchangeError,
    HookTakenError,
    Plan,
    PlanError,
    PlanMismatchError,
    Silence,
    StateError,
    ddp,
    seal,
)
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

SHAPES = [(40, 70), (33,), (3000, 10)]


def _spoiled(rank, world_size, codec, exempt_patterns):
    """Random gradients; step 5 has an infinite element on rank 1. Returns what was owed before and after it."""
    plan = everything(codec, exempt_patterns=exempt_patterns)
    model, exchange, script = wrap(Given(*SHAPES), plan, bucket_cap_mb=0.02)
    generator = torch.Generator().manual_seed(rank)
    owed, finite = [], []
    for step in range(1, 9):
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
        if step == 5 and rank == 1:
            gradients[2][1234, 5] = torch.inf
        model.zero_grad()
        model(gradients).backward()
        finite.append([bool(gradient.isfinite().all()) for gradient in gradients_of(model)])
        held = exchange.owed()
        owed.append({name: tensor.clone() for name, tensor in held.items()})
    assert not script.errors
    return owed, finite, script.nonfinite_parameters, script.num_nonfinite_results


@pytest.mark.parametrize("codec", CODECS)
def test_nonfinite_gradient_reaches_every_rank_and_leaves_the_residual_as_it_was(codec):
    results = run_ranks(2, _spoiled, codec, ())
    for rank, (owed, finite, parameters, num_results) in enumerate(results):
        assert finite == [[True, True, step != 5] for step in range(1, 9)]
        assert num_results == 1
        assert parameters == ([(5, ("weights.2",))] if rank == 1 else [])
        before, after = owed[3]["weights.2"], owed[4]["weights.2"]
        assert torch.allclose(before, after, rtol=0, atol=1e-5)
        assert all(tensor.isfinite().all() for tensors in owed for tensor in tensors.values())
        assert not torch.allclose(after, owed[5]["weights.2"], rtol=0, atol=1e-3)


def test_nonfinite_exempt_tensor_reaches_every_rank_and_is_named():
    for rank, (_, finite, parameters, num_results) in enumerate(run_ranks(2, _spoiled, "int8", ("*.2",))):
        assert finite == [[True, True, step != 5] for step in range(1, 9)]
        # weights.2 may have a bucket of its own, which then is averaged exactly and not looked at.
        assert num_results in (0, 1)
        assert parameters in (([(5, ("weights.2",))], []) if rank == 1 else ([],))


def _save_and_copy(rank, world_size):
    model, exchange, _ = wrap(Given(*SHAPES), everything("int8"), gradient_as_bucket_view=True)
    gradients = [torch.full(shape, 1.0 + rank) for shape in SHAPES]
    model(gradients).backward()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    copied = copy.deepcopy(model)
    state = exchange.state_dict()
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    torch.load(file, weights_only=True)
    means = []
    for one in (model, loaded, copied):
        one.zero_grad()
        one(gradients).backward()
        means.append([float(gradient.mean()) for gradient in gradients_of(one)])
    return means


def test_model_can_be_saved_and_copied_with_the_hook_attached():
    for means in run_ranks(3, _save_and_copy):
        for values in means:
            assert values == pytest.approx([2.0] * 3, rel=0.01)


def _attach_twice(rank, world_size):
    model, exchange, _ = wrap(Given(*SHAPES))
    other = DistributedDataParallel(Given(*SHAPES))
    other.register_comm_hook(None, allreduce_hook)
    texts = []
    for taken in (model, other):
        with pytest.raises(HookTakenError) as caught:
            ddp.attach_ddp(taken, exchange)
        texts.append(str(caught.value))
    return texts


def test_attach_names_the_hook_that_is_there_already():
    for texts in run_ranks(1, _attach_twice):
        assert texts[0] == "the DDP model is attached already; close its session first"
        assert "allreduce_hook" in texts[1]


def _die_on_one(rank, world_size, codec):
    model, _, _ = wrap(Given(*SHAPES), everything(codec))
    gradients = [torch.ones(shape) for shape in SHAPES]
    # Before its second forward DDP itself talks to the others.
    for _ in range(2):
        model(gradients).backward()
    if rank == 1:
        os._exit(0)
    try:
        for _ in range(3):
            model(gradients).backward()
    except Exception as error:
        # Not through the parent: a rank that died makes run_ranks fail whatever this one returns.
        raise RuntimeError(f"backward raised {type(error).__name__}: {error}") from error


@pytest.mark.parametrize("codec", CODECS)
def test_a_dead_peer_fails_backward_with_the_codecs_name(codec):
    with pytest.raises(AssertionError, match=rf"backward raised \w+: .*{codec}: averaging bucket 0 failed"):
        run_ranks(2, _die_on_one, codec)


class _Angry(Silence):
    def __init__(self, error):
        self.error = error

    def begin_sync(self):
        raise self.error

    end_sync = begin_sync

    def bucket_done(self, timing):
        raise ValueError("done")


def _observe_angrily(rank, world_size, codec, error):
    module = Given(*SHAPES)
    model = DistributedDataParallel(module)
    exchange = Exchange(
        list(module.named_parameters()),
        None,
        plan=everything(codec),
        optimizer_class="SGD",
        observer=_Angry(error),
    )
    ddp.attach_ddp(model, exchange)
    for _ in range(3):
        model.zero_grad()
        model([torch.full(shape, 1.0 + rank) for shape in SHAPES]).backward()
    return [float(gradient.mean()) for gradient in gradients_of(model)]


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_what_an_observer_raises_stays_out_of_training(codec):
    for means in run_ranks(2, _observe_angrily, codec, ValueError("mine")):
        assert means == pytest.approx([1.5] * 3, rel=0.01)


def test_only_a_plan_mismatch_stops_training():
    with pytest.raises(AssertionError, match="rank 1 holds another plan"):
        run_ranks(2, _observe_angrily, "int8", PlanMismatchError("rank 1 holds another plan"))


def _close(rank, world_size):
    model, exchange, script = wrap(Given(*SHAPES), everything("onebit"))
    plain = DistributedDataParallel(Given(*SHAPES))
    generator = torch.Generator().manual_seed(rank)
    for step in range(4):
        if step == 2:
            exchange.close()
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
        for one in (model, plain):
            one.zero_grad()
            one(gradients).backward()
        pairs = zip(gradients_of(model), gradients_of(plain), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs) == (step >= 2)
    with pytest.raises(PlanError, match="closed"):
        exchange.prepare(Plan(codec="int8"))
    exchange.close()
    return not script.errors


def test_closed_exchange_averages_as_plain_ddp():
    assert run_ranks(2, _close) == [True, True]


def _attach_again_and_again(rank, world_size):
    means = []
    for number in range(4):
        model, exchange, script = wrap(Given(*SHAPES), everything("int8"))
        model([torch.full(shape, 1.0 + rank + number) for shape in SHAPES]).backward()
        means.append(float(gradients_of(model)[0].mean()))
        exchange.close()
        assert not script.errors
    return means


def test_exchanges_can_follow_each_other_in_one_process():
    for means in run_ranks(2, _attach_again_and_again):
        assert means == pytest.approx([1.5, 2.5, 3.5, 4.5], rel=0.01)


def _resume(rank, world_size):
    """Steps in one exchange against the same steps with a change of exchange in the middle."""
    generator = torch.Generator().manual_seed(rank)
    steps = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(8)]
    total = [torch.zeros(shape) for shape in SHAPES]
    state = None
    for part in (steps[:4], steps[4:]):
        model, exchange, script = wrap(Given(*SHAPES), everything("onebit", warmup_steps=2), bucket_cap_mb=0.02)
        if state is not None:
            exchange.load_state_dict(state)
        for gradients in part:
            model.zero_grad()
            model(gradients).backward()
            total = [sum_ + gradient for sum_, gradient in zip(total, gradients_of(model), strict=True)]
        state = exchange.state_dict()
        assert not script.errors
    assert state["num_syncs"] == 8
    owed = [exchange.owed()[f"weights.{index}"] for index in range(3)]
    wanted = [sum(step[index] for step in steps) for index in range(3)]
    for tensor in (*owed, *wanted):
        dist.all_reduce(tensor)
    return [
        float((sum_ + debt / world_size - want / world_size).norm() / want.norm())
        for sum_, debt, want in zip(total, owed, wanted, strict=True)
    ]


def _reload(rank, world_size, codec):
    """Load a state into the exchange that it came from: what was owed stays owed, and the codec stays in use."""
    model, exchange, script = wrap(Given(*SHAPES), everything(codec), bucket_cap_mb=0.02)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(4):
        model.zero_grad()
        model([torch.randn(shape, generator=generator) for shape in SHAPES]).backward()
    state = exchange.state_dict()
    exchange.load_state_dict(state)
    again = exchange.state_dict()
    equal = [torch.equal(tensor, again["residuals"][name]) for name, tensor in state["residuals"].items()]
    model([torch.randn(shape, generator=generator) for shape in SHAPES]).backward()
    is_compressed = any(timing.codec for timing in script.timings if timing.step == 5)
    assert not script.errors
    with pytest.raises(StateError, match=r"the residual of weights.0 has shape \[3\]; wanted: shape \[40, 70\]"):
        exchange.load_state_dict(seal({**state, "residuals": {"weights.0": torch.zeros(3)}}))
    with pytest.raises(StateError, match=r"the residual of weights.9 .*wanted: no such parameter"):
        exchange.load_state_dict(seal({**state, "residuals": {"weights.9": torch.zeros(3)}}))
    return len(equal), all(equal), is_compressed


@pytest.mark.parametrize("codec", CODECS)
def test_state_can_be_loaded_between_steps(codec):
    assert run_ranks(2, _reload, codec) == [(3, True, True)] * 2


def _load_alone(rank, world_size):
    model, exchange, script = wrap(Given(*SHAPES), everything("int8"))
    held = {"weights.1": torch.full((33,), 2.0)}
    exchange.load_state_dict(seal({**exchange.state_dict(), "residuals": held, "num_syncs": 7}))
    total = torch.zeros(33)
    for _ in range(6):
        model.zero_grad()
        model([torch.ones(shape) for shape in SHAPES]).backward()
        total += gradients_of(model)[1]
    assert not script.errors
    return total.mean().item(), exchange.is_settling


def test_residual_loaded_by_a_single_rank_is_flushed():
    assert run_ranks(1, _load_alone) == [(pytest.approx(8.0), False)]


def test_residuals_survive_a_change_of_exchange():
    for errors in run_ranks(2, _resume):
        assert max(errors) < 1e-5


def _mixed(rank, world_size, codec):
    """A sparse, a double, a complex and an empty parameter beside a dense one; against plain DDP."""

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4, sparse=True)
            self.wide = torch.nn.Parameter(torch.ones(2000, dtype=torch.float64))
            self.turning = torch.nn.Parameter(torch.ones(30, 40, dtype=torch.complex64))
            self.nothing = torch.nn.Parameter(torch.ones(0, 4))
            self.single = torch.nn.Parameter(torch.ones(()))
            self.weight = torch.nn.Parameter(torch.ones(50, 40))

        def forward(self, ids):
            dense = (self.weight.sum() + self.nothing.sum() + self.single) * (1.0 + rank)
            others = self.wide.sum() * (2.0 + rank) + self.turning.real.sum() + self.turning.imag.sum()
            return self.embedding(ids).sum() + dense + others

    torch.manual_seed(0)
    hooked, _, script = wrap(Mixed(), everything(codec), bucket_cap_mb=0.001)
    torch.manual_seed(0)
    plain = DistributedDataParallel(Mixed(), bucket_cap_mb=0.001)
    ids = torch.tensor([1, 1, 3] if rank == 0 else [3, 7])
    for _ in range(3):
        for model in (hooked, plain):
            model.zero_grad()
            model(ids).backward()
    assert not script.errors
    for (name, one), other in zip(hooked.module.named_parameters(), plain.module.parameters(), strict=True):
        left, right = (grad.to_dense() if grad.is_sparse else grad for grad in (one.grad, other.grad))
        if name == "weight":
            assert torch.allclose(left, right, rtol=0.01) == (codec != "topk")
        elif name not in ("single", "nothing"):
            assert torch.equal(left, right), name
    return True


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_gradients_that_no_codec_reads_are_averaged_exactly(codec):
    assert run_ranks(2, _mixed, codec) == [True, True]


def _frozen(rank, world_size):
    module = torch.nn.Linear(3, 3)
    module.requires_grad_(False)
    with pytest.raises(CompressionError, match="no parameter of the model requires a gradient"):
        Exchange(list(module.named_parameters()), None, plan=Plan(), optimizer_class=None, observer=Silence())
    return True


def test_c09_frozen_model_is_refused_in_plain_words():
    assert run_ranks(1, _frozen) == [True]


def test_exchange_error_is_a_compression_error():
    assert issubclass(ExchangeError, CompressionError)
