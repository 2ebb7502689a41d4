"""Buckets that are faster uncompressed travel so: figures on either side of the break-even, real gloo ranks."""

from dataclasses import replace

import pytest
import torch
from distributed.hooked import Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan, PlanError
from gradwire_compression.costs import Line, Link, Links

pytestmark = pytest.mark.distributed

# Two buckets from the second step on: DDP begins with one for all, and fills the first one up to a megabyte.
SHAPES = [(40, 40), (512, 512)]
LARGE, SMALL = 4 * 512 * 512, 4 * 40 * 40


def links(latency, byte):
    link = Link(Line(latency, byte), Line(2 * latency, byte))
    return Links(link)


# With 1 MB/s and 50 ms for a message, compressing pays for a megabyte and not for six kilobytes.
MIXED, SLOW, FAST = links(0.05, 1e-6), links(0.0, 1e-4), links(0.0, 0.0)


def _train(rank, world_size, figures, plan, switches, num_steps, shapes=SHAPES):
    generator = torch.Generator().manual_seed(rank)
    model, exchange, script = wrap(Given(*shapes), plan, switches, bucket_cap_mb=0.01)
    exchange.decide_by(figures)
    own, applied = [], []
    for _ in range(num_steps):
        gradients = [torch.randn(shape, generator=generator) for shape in shapes]
        model.zero_grad()
        model(gradients).backward()
        own.append(torch.cat([gradient.flatten() for gradient in gradients]).double())
        applied.append(torch.cat([gradient.flatten() for gradient in gradients_of(model)]).double())
    assert not script.errors
    owed = exchange.owed()
    zeros = [torch.zeros(shape) for shape in shapes]
    return {
        "own": torch.stack(own),
        "applied": torch.stack(applied),
        "owed": torch.cat(
            [owed.get(f"weights.{index}", zero).flatten() for index, zero in enumerate(zeros)]
        ).double(),
        # (step, bytes of the bucket) -> bytes sent.
        "sent": {(one.step, one.logical_bytes): one.wire_bytes for one in script.timings},
        "explanation": exchange.explain(),
        "is_equal": replicas_equal(model),
        "is_settling": exchange.is_settling,
    }


def _assert_nothing_is_lost(results, tolerance=1e-6):
    wanted = sum(result["own"].sum(dim=0) for result in results) / len(results)
    owed = sum(result["owed"] for result in results) / len(results)
    lost = results[0]["applied"].sum(dim=0) + owed - wanted
    assert float(lost.norm() / wanted.norm()) < tolerance


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("codec", ["int8", "bf16", "onebit", "topk", "powersgd"])
def test_small_bucket_travels_exactly_beside_a_large_one_that_does_not(world_size, codec):
    # A codec that sends half may not pay for the latency of two messages; this one sends one.
    figures = MIXED if codec != "bf16" else Links(Link(Line(0.0, 1e-6), Line(0.0, 1e-6)))
    results = run_ranks(world_size, _train, figures, everything(codec), {}, 12)
    # The sum of an all-reduce in bfloat16 is rounded by nobody's fault.
    _assert_nothing_is_lost(results, 5e-3 if codec == "bf16" else 1e-6)
    exact = 2 * (world_size - 1) * SMALL // world_size
    for result in results:
        assert torch.equal(result["applied"], results[0]["applied"])
        assert result["sent"] == results[0]["sent"]
        # While both were in one bucket it was worth it.
        assert result["sent"][1, LARGE + SMALL] < LARGE
        assert result["sent"][12, LARGE] < LARGE
        if codec != "bf16":
            assert result["sent"][12, SMALL] == exact
            assert not result["owed"][: SMALL // 4].any()
        assert result["owed"].any()


def test_small_tensor_is_averaged_as_ddp_would():
    results = run_ranks(2, _train, MIXED, everything("int8"), {}, 12)
    mean = (results[0]["own"] / 2 + results[1]["own"] / 2)[-3:, : SMALL // 4]
    assert torch.equal(results[0]["applied"][-3:, : SMALL // 4].float(), mean.float())


@pytest.mark.parametrize(
    ("figures", "every_bucket", "spared"),
    [
        (SLOW, False, set()),
        (MIXED, False, {SMALL}),
        (FAST, False, {LARGE, SMALL}),
        (FAST, True, set()),
        (None, False, set()),
    ],
    ids=["slow", "mixed", "fast", "pinned", "no figures"],
)
def test_figures_on_either_side_of_the_break_even_decide(figures, every_bucket, spared):
    results = run_ranks(2, _decide, figures, everything("int8", every_bucket=every_bucket))
    assert results[0] == results[1]
    sent, explanation = results[0]
    for num_bytes in (SMALL, LARGE):
        assert (sent[num_bytes] == num_bytes) is (num_bytes in spared)
    assert (explanation.num_buckets, explanation.num_spared) == (2, len(spared))
    for tensor, num_bytes in zip(explanation.tensors, (SMALL, LARGE), strict=True):
        assert (tensor.exact_bytes, tensor.sent_bytes) == (num_bytes, sent[num_bytes])
        assert tensor.codec == ("exact" if num_bytes in spared else "int8")
        assert ("should take" in tensor.reason) is (num_bytes in spared)


def _decide(rank, world_size, figures, plan):
    model, exchange, script = wrap(Given(*SHAPES), None, {3: (plan, "carry")}, bucket_cap_mb=0.01)
    if figures is not None:
        exchange.decide_by(figures)
    for _ in range(4):
        model([torch.ones(shape) for shape in SHAPES]).backward()
    assert not script.errors
    sent = {one.logical_bytes: one.wire_bytes for one in script.timings if one.step == 4}
    # An owner of fewer elements needs less memory.
    return sent, replace(exchange.explain(), memory_bytes=0)


def test_switches_there_and_back_lose_nothing():
    switches = {
        4: (everything("onebit"), "carry"),
        10: (everything("int8", every_bucket=True), "carry"),
        # What the pinned plan owes to the small bucket is paid back under a lossy one.
        15: (everything("int8"), "carry"),
        25: (Plan(), "carry"),
    }
    results = run_ranks(2, _train, MIXED, None, switches, 60)
    _assert_nothing_is_lost(results)
    for result in results:
        assert torch.equal(result["applied"], results[0]["applied"])
        assert not result["owed"].any()
        assert not result["is_settling"]


def test_what_was_compressed_before_the_figures_came_is_paid_back():
    results = run_ranks(2, _late_figures)
    wanted = sum(own for own, _ in results) / 2
    assert float((results[0][1] - wanted).norm() / wanted.norm()) < 1e-6


def _late_figures(rank, world_size):
    generator = torch.Generator().manual_seed(rank)
    model, exchange, script = wrap(Given(*SHAPES), everything("int8"), bucket_cap_mb=0.01)
    own = applied = torch.zeros(sum(a * b for a, b in SHAPES)).double()
    for step in range(20):
        if step == 5:
            exchange.decide_by(FAST)
        gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
        model.zero_grad()
        model(gradients).backward()
        own = own + torch.cat([gradient.flatten() for gradient in gradients])
        applied = applied + torch.cat([gradient.flatten() for gradient in gradients_of(model)])
    assert not script.errors
    assert not exchange.is_settling
    return own, applied


def _measured(rank, world_size, nodes):
    model, exchange, _ = wrap(Given(*SHAPES), everything("int8"), nodes=nodes, bucket_cap_mb=0.01)
    exchange.decide_by()
    for _ in range(5):
        model.zero_grad()
        model([torch.ones(shape) for shape in SHAPES]).backward()
    return exchange._pricing._links, exchange.explain(), gradients_of(model)[0][0, 0].item()


@pytest.mark.parametrize(("world_size", "nodes"), [(2, ()), (3, ()), (4, ((0, 1), (2, 3)))])
def test_measured_figures_are_equal_on_all_ranks(world_size, nodes):
    results = run_ranks(world_size, _measured, nodes)
    figures, explanation, gradient = results[0]
    for other in results[1:]:
        assert (other[0], other[2]) == (figures, gradient)
        assert [tensor.codec for tensor in other[1].tensors] == [tensor.codec for tensor in explanation.tensors]
    assert gradient == pytest.approx(1.0, rel=1e-2)
    assert (figures.inner is not None) is (figures.outer is not None) is bool(nodes)
    for link in (figures.flat, figures.inner, figures.outer):
        if link is not None:
            assert all(line.fixed_seconds >= 0 and line.seconds_per_unit > 0 for line in link.lines)
    assert explanation.num_buckets == 2


def _alone(rank, world_size):
    model, exchange, _ = wrap(Given(*SHAPES), everything("int8"))
    exchange.decide_by()
    model([torch.ones(shape) for shape in SHAPES]).backward()
    return exchange.explain()


def test_single_process_has_nobody_to_send_to():
    (explanation,) = run_ranks(1, _alone)
    assert {tensor.reason for tensor in explanation.tensors} == {"one process has nobody to send to"}


@pytest.mark.parametrize(("dtype", "ratio"), [(torch.float32, 31.5), (torch.bfloat16, 15.8)])
def test_ratio_is_against_the_dtype_that_is_really_sent(dtype, ratio):
    for explanation in run_ranks(2, _ratio, dtype):
        (tensor,) = explanation.tensors
        assert tensor.exact_bytes / tensor.sent_bytes == pytest.approx(ratio, rel=0.01)


def _ratio(rank, world_size, dtype):
    model, exchange, _ = wrap(Given((1024, 1024), dtype=dtype), everything("onebit"))
    model([torch.ones(1024, 1024, dtype=dtype)]).backward()
    return exchange.explain()


def _too_large(rank, world_size):
    # As large as no machine's memory, and as small as one element: what it would take is known without taking it.
    huge = torch.zeros(1).expand(2**24, 2**24).requires_grad_()
    _, exchange, _ = wrap(Given((4, 4)))
    exchange._parameters["huge"] = huge
    try:
        exchange.prepare(everything("powersgd"))
    except PlanError as error:
        return str(error), exchange.plan.codec
    return "no error", exchange.plan.codec


def test_plan_that_does_not_fit_is_refused_with_both_figures():
    for text, codec in run_ranks(2, _too_large):
        assert text.startswith("powersgd needs 1.13 PB of memory for the 1 ranks of this node and ")
        assert " GB are free; " in text
        assert codec == "none"
