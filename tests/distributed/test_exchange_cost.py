"""What a plan takes: memory that is told beforehand, nothing large in a step, ends that do not wait for ever."""

import pytest
import torch
import torch.distributed as dist
from distributed.hooked import CODECS, DENSE, Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan
from gradwire_compression.codecs import registry
from gradwire_compression.collectives import compat
from gradwire_compression.trace import Trace
from torch.distributed.algorithms.join import Join
from torch.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.distributed

SHAPES = [(400, 500), (600,), (300, 700)]


def _memory(rank, world_size, codec):
    model, exchange, script = wrap(Given(*SHAPES), Plan(), bucket_cap_mb=0.5)
    plan = Plan(codec=codec)
    before = exchange.weigh(plan).memory_bytes
    gradients = [torch.ones(shape) for shape in SHAPES]
    for _ in range(3):
        model(gradients).backward()
    known = exchange.weigh(plan).memory_bytes
    prepared = exchange.prepare(plan)
    assert exchange.plan == Plan()
    assert not script.errors
    return before, known, prepared.memory_bytes, exchange.weigh(Plan()).memory_bytes


@pytest.mark.parametrize(
    ("codec", "low", "high"),
    [
        ("bf16", 4, 9),
        ("fp16", 4, 9),
        ("int8", 8, 11.5),
        ("fp8", 8, 11.5),
        ("int4", 8, 10),
        ("onebit", 8, 9),
        ("topk", 8, 9),
    ],
)
def test_memory_is_told_before_it_is_taken(codec, low, high):
    numel = 400 * 500 + 300 * 700
    for before, known, taken, none in run_ranks(2, _memory, codec):
        assert known == taken
        # One residual of 4 bytes for each element, two for each owned one, and payloads.
        assert low * numel <= known < high * numel
        assert known <= before < 1.5 * known
        assert none == 0


def _allocations(rank, world_size, codec):
    """Bytes of the largest block that torch allocates while a bucket is averaged, after the first steps."""
    model, exchange, script = wrap(Given(*SHAPES), Plan(codec=codec))
    gradients = [torch.randn(shape) for shape in SHAPES]
    for _ in range(3):
        model(gradients).backward()
    largest = 0
    for bucket in exchange._active.buckets.values():
        buffer = torch.randn(bucket.shape.numel)
        dist.barrier()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            bucket.average(buffer, None, Trace(lambda: 0.0))
        largest = max([largest, *(event.cpu_memory_usage for event in profiler.events())])
    assert not script.errors
    return largest


@pytest.mark.parametrize("codec", CODECS)
def test_steady_step_allocates_nothing_large(codec):
    # gloo's all-gather takes one payload for itself; a float32 copy of a shard would be twice as much.
    payload_bytes = registry.facts(codec).bits_per_element / 8 * (400 * 500 + 300 * 700)
    assert max(run_ranks(2, _allocations, codec)) <= payload_bytes + 8192


def _uneven(rank, world_size, codec):
    model, _, script = wrap(Given(*SHAPES), everything(codec))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    applied = []
    with Join([model]):
        for _ in range(5 if rank == 0 else 3):
            optimizer.zero_grad()
            model([torch.full(shape, 2.0) for shape in SHAPES]).backward()
            applied.append(float(gradients_of(model)[0].mean()))
            optimizer.step()
    assert not script.errors
    return applied, script.num_ended


@pytest.mark.parametrize("codec", ["none", *DENSE])
def test_rank_without_data_takes_part_in_the_others_steps(codec):
    (first, num_first), (second, num_second) = run_ranks(2, _uneven, codec)
    assert first == pytest.approx([2.0, 2.0, 2.0, 1.0, 1.0], rel=0.02)
    assert second == pytest.approx([2.0] * 3, rel=0.02)
    assert num_first == num_second == 5


def _timeouts(rank, world_size):
    side = compat.new_side_group(None)
    return compat.group_timeout(None).total_seconds(), compat.group_timeout(side).total_seconds()


def test_side_group_takes_the_time_out_of_the_models_group():
    assert run_ranks(2, _timeouts) == [(30.0, 30.0)] * 2


def _parts(rank, world_size):
    """A bucket of many parts against the plain mean."""
    torch.manual_seed(rank)
    gradients = [torch.randn(1500, 2000)]
    model, exchange, script = wrap(Given((1500, 2000)), everything("int8"))
    for _ in range(3):
        model.zero_grad()
        model(gradients).backward()
    assert exchange._active.buckets[0].collective._num_parts > 2
    exact = gradients[0].clone()
    dist.all_reduce(exact)
    assert not script.errors
    assert replicas_equal(model)
    return float((gradients_of(model)[0] - exact / world_size).norm() / exact.norm())


@pytest.mark.parametrize("world_size", [2, 3])
def test_large_bucket_travels_in_parts(world_size):
    assert max(run_ranks(world_size, _parts)) < 0.01
