"""Lossy plans on real ranks: the mean they apply, the error they remember, the bytes they send."""

import pytest
import torch
from distributed.hooked import CODECS, Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan
from gradwire_compression.codecs import registry

pytestmark = pytest.mark.distributed

SHAPES = [(40, 70), (33,), (300, 10), (7, 9)]
NUM_ELEMENTS = 5896


def _gradients(rank, dtype=torch.float32):
    """Constant gradients that differ between ranks in size and agree in sign."""
    signs = torch.Generator().manual_seed(5)
    sizes = torch.Generator().manual_seed(100 + rank)
    made = []
    for shape in SHAPES:
        sign = torch.where(torch.rand(shape, generator=signs) < 0.5, -1.0, 1.0)
        made.append((sign * (0.5 + 0.5 * torch.rand(shape, generator=sizes))).to(dtype))
    return made


def _norm(tensors):
    return sum(float(tensor.double().square().sum()) for tensor in tensors) ** 0.5


def _steady(rank, world_size, codec, num_steps, dtype):
    """Return (sums of applied gradients, own gradients, residual norm of each step)."""
    parameters = {"k": 64} if codec == "topk" else {}
    gradients, plan = _gradients(rank, dtype), Plan(codec=codec, parameters=parameters, min_elements=0)
    model, exchange, script = wrap(Given(*SHAPES, dtype=dtype), plan, bucket_cap_mb=0.02)
    total = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    norms = []
    for _ in range(num_steps):
        model.zero_grad()
        model(gradients).backward()
        for sum_, gradient in zip(total, gradients_of(model), strict=True):
            sum_ += gradient
        norms.append(_norm(exchange.owed().values()))
    assert not script.errors
    return total, gradients, norms


def _relative_errors(results, num_steps):
    for index in range(len(SHAPES)):
        exact = sum(gradients[index].double() for _, gradients, _ in results) / len(results)
        assert all(torch.equal(total[index], results[0][0][index]) for total, _, _ in results)
        yield float((results[0][0][index] / num_steps - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("codec", "limit"),
    [
        ("bf16", 4e-3),
        ("fp16", 1e-3),
        ("int8", 1e-3),
        ("fp8", 3e-3),
        ("int4", 0.01),
        ("onebit", 0.03),
        ("topk", 0.2),
    ],
)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_codec_applies_the_mean_over_time(codec, limit, world_size):
    results = run_ranks(world_size, _steady, codec, 50, torch.float32)
    assert max(_relative_errors(results, 50)) < limit


def test_onebit_is_right_to_a_percent_after_500_steps_and_its_residual_stops_growing():
    results = run_ranks(2, _steady, "onebit", 500, torch.float32, timeout=120)
    assert max(_relative_errors(results, 500)) < 0.01
    for _, _, norms in results:
        # A residual that takes in the averaged error instead of the local one grows in proportion to the steps.
        assert max(norms[450:]) < 1.25 * max(norms[200:250])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("codec", CODECS)
def test_codec_takes_half_precision_gradients(codec, dtype):
    results = run_ranks(2, _steady, codec, 50, dtype)
    assert max(_relative_errors(results, 50)) < (0.2 if codec == "topk" else 0.03)


def _conserve(rank, world_size, codec):
    """Return (own gradient sums, own debt, applied sums) after steps with random gradients."""
    generator = torch.Generator().manual_seed(rank)
    model, exchange, script = wrap(Given(*SHAPES), everything(codec), bucket_cap_mb=0.02)
    own, applied = torch.zeros(NUM_ELEMENTS, dtype=torch.float64), torch.zeros(NUM_ELEMENTS, dtype=torch.float64)
    for _ in range(12):
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
        model.zero_grad()
        model(gradients).backward()
        own += torch.cat([g.flatten() for g in gradients])
        applied += torch.cat([g.flatten() for g in gradients_of(model)])
    held = exchange.owed()
    assert not script.errors
    return own, torch.cat([held[f"weights.{index}"].flatten() for index in range(len(SHAPES))]), applied


# The native sum of two-byte floats rounds once a hop, and no rank can know by how much.
@pytest.mark.parametrize(
    ("codec", "limit"),
    [
        ("bf16", 4e-3),
        ("fp16", 1e-3),
        ("int8", 1e-6),
        ("fp8", 1e-6),
        ("int4", 1e-6),
        ("onebit", 1e-6),
        ("topk", 1e-6),
    ],
)
@pytest.mark.parametrize("world_size", [2, 3])
def test_what_is_applied_and_what_is_owed_add_up_to_the_gradients(codec, limit, world_size):
    results = run_ranks(world_size, _conserve, codec)
    wanted = sum(own for own, _, _ in results) / world_size
    got = results[0][2] + sum(owed.double() for _, owed, _ in results) / world_size
    assert float((got - wanted).norm() / wanted.norm()) < limit


def _count_bytes(rank, world_size, codec):
    model, _, script = wrap(Given((64, 1024), (100,), (3, 5)), Plan(codec=codec))
    for _ in range(3):
        model([torch.ones(64, 1024), torch.ones(100), torch.ones(3, 5)]).backward()
    assert not script.errors
    return script.timings


@pytest.mark.parametrize("codec", CODECS)
def test_timings_count_what_was_sent_exempt_tensors_included(codec):
    world_size, numel = 2, 64 * 1024
    for timings in run_ranks(world_size, _count_bytes, codec):
        last = [timing for timing in timings if timing.step == 3]
        assert sum(timing.logical_bytes for timing in last) == 4 * (numel + 115)
        exempt = 2 * (world_size - 1) * 4 * 115 // world_size
        bits = registry.facts(codec).bits_per_element
        # One more element of fp16 for each rank carries the magnitudes.
        magnitudes = 2 * (world_size - 1) * 2 if codec == "fp16" else 0
        assert sum(timing.wire_bytes for timing in last) == exempt + magnitudes + numel * bits / 8
        for timing in last:
            assert timing.num_buckets == len(last)
            assert {operation for _, _, operation in timing.codec} == {"encode", "decode"}
            assert all(timing.ready <= begin <= end <= timing.done for begin, end, _ in timing.codec)


def _train(rank, world_size, codec, ddp_arguments, num_backwards):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 50), torch.nn.Linear(50, 1)]
    model, exchange, script = wrap(
        torch.nn.Sequential(*layers), everything(codec), bucket_cap_mb=0.005, **ddp_arguments
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    losses, hashes = [], []
    for _ in range(30):
        optimizer.zero_grad()
        data = torch.randn(16, 20, generator=generator)
        for index in range(num_backwards):
            with torch.enable_grad() if index == num_backwards - 1 else model.no_sync():
                loss = (model(data) - data.sum(dim=1, keepdim=True).tanh()).square().mean()
                loss.backward()
        optimizer.step()
        losses.append(loss.item())
        hashes.append(exchange.layout_hash())
        assert replicas_equal(model)
    assert not script.errors
    assert exchange.num_syncs == script.num_ended == 30
    return losses, hashes, len({timing.index for timing in script.timings})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("ddp_arguments", "num_backwards"),
    [
        ({}, 2),
        # Accumulation with a static graph fails in DDP itself.
        ({"static_graph": True}, 1),
        ({"find_unused_parameters": True}, 1),
        ({"gradient_as_bucket_view": True}, 2),
    ],
    ids=["default", "static_graph", "find_unused", "bucket_view"],
)
def test_training_goes_on_through_bucket_rebuild_and_accumulation(codec, ddp_arguments, num_backwards):
    results = run_ranks(2, _train, codec, ddp_arguments, num_backwards)
    for losses, hashes, num_buckets in results:
        assert sum(losses[-5:]) < 0.7 * sum(losses[:5])
        assert num_buckets > 1
        assert hashes == results[0][1]
        assert all(0 < number < 2**48 for number in hashes)
    assert (len(set(results[0][1])) > 1) == ("find_unused_parameters" not in ddp_arguments)
