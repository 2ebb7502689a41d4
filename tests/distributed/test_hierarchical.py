"""Exchange in two levels: exact inside nodes, compressed across; two nodes of two ranks unless said otherwise."""

import copy
import os

import pytest
import torch
from distributed.hooked import Given, everything, gradients_of, replicas_equal, wrap
from distributed.ranks import RankFailedError, run_ranks
from distributed.training import attach, batch, make_model, train_step
from gradwire_compression import Plan

pytestmark = pytest.mark.distributed

SHAPES = [(40, 70), (33,), (300, 10), (7, 9)]
NODES = ((0, 1), (2, 3))
CODECS = ("bf16", "int8", "onebit")


def _flat(tensors):
    return torch.cat([tensor.flatten().double() for tensor in tensors])


def _follow(rank, world_size, plan, switches, num_steps, nodes, shapes, dtype, bucket_cap_mb, spoiled_step):
    """Random gradients under a script of switches; one row a step, and what is owed in the end."""
    generator = torch.Generator().manual_seed(rank)
    model, exchange, script = wrap(
        Given(*shapes, dtype=dtype), plan, switches, nodes=nodes, bucket_cap_mb=bucket_cap_mb
    )
    own, applied, owed_by_step = [], [], []
    for step in range(1, num_steps + 1):
        gradients = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
        if step == spoiled_step and rank == world_size - 1:
            gradients[2][5, 5] = torch.nan
        model.zero_grad()
        model(gradients).backward()
        own.append(_flat(gradients))
        applied.append(_flat(gradients_of(model)))
        held = exchange.owed()
        owed_by_step.append(
            _flat(held.get(f"weights.{index}", torch.zeros(shape)) for index, shape in enumerate(shapes))
        )
    if script.errors:
        raise script.errors[0]
    return {
        "own": torch.stack(own),
        "applied": torch.stack(applied),
        "owed": torch.stack(owed_by_step),
        "flat_reason": exchange.weigh(exchange.plan).route().flat_reason,
        "dropped": {step: report.residual_norm_dropped for step, report in script.reports.items()},
        "timings": script.timings,
        "nonfinite": script.nonfinite_parameters,
        "num_nonfinite_results": script.num_nonfinite_results,
    }


def _run(
    plan=None,
    switches=(),
    num_steps=12,
    nodes=NODES,
    shapes=SHAPES,
    dtype=torch.float32,
    bucket_cap_mb=0.02,
    spoiled_step=0,
):
    world_size = sum(map(len, nodes))
    arguments = (plan, dict(switches), num_steps, nodes, shapes, dtype, bucket_cap_mb, spoiled_step)
    results = run_ranks(world_size, _follow, *arguments, timeout=120)
    if not spoiled_step:
        assert all(torch.equal(result["applied"], results[0]["applied"]) for result in results)
    return results


def _exact(results):
    return sum(result["own"] for result in results) / len(results)


def _lost(results):
    """Norm of what was neither applied nor is owed, against the norm of all gradients."""
    wanted = _exact(results).sum(dim=0)
    owed = sum(result["owed"][-1] for result in results) / len(results)
    return float((results[0]["applied"].sum(dim=0) + owed - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("nodes", [NODES, ((0, 2), (1, 3)), ((0, 3), (1, 2)), ((0, 1, 2), (3, 4, 5))])
def test_mean_is_right_and_what_is_missing_is_owed_whatever_the_order_of_ranks(nodes):
    results = _run(everything("int8"), nodes=nodes)
    assert results[0]["flat_reason"] == ""
    error = (results[0]["applied"] - _exact(results)).norm() / _exact(results).norm()
    assert 1e-4 < float(error) < 0.02
    assert _lost(results) < 1e-6


# The native sum of bf16 rounds once a hop, and no rank can know by how much.
@pytest.mark.parametrize(("codec", "limit"), [("bf16", 4e-3), ("int8", 1e-6), ("onebit", 1e-6)])
def test_what_is_applied_and_what_is_owed_add_up_to_the_gradients(codec, limit):
    assert _lost(_run(everything(codec))) < limit


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_travels_inside_as_it_is(dtype):
    results = _run(everything("int8"), dtype=dtype)
    error = (results[0]["applied"] - _exact(results)).norm() / _exact(results).norm()
    assert float(error) < 0.02
    # Averages of half precision gradients are themselves rounded to it.
    assert _lost(results) < 5e-3


@pytest.mark.parametrize("codec", ["int8", "onebit"])
def test_hybrid_rounds_to_bfloat16_inside_and_sends_half_of_the_bytes_there(codec):
    results, exact_inside = (_run(everything(codec, exchange=kind)) for kind in ("hybrid", "hierarchical"))
    assert results[0]["flat_reason"] == ""
    # Eight bits of each gradient and of each mean: more than float32 loses, and no residual remembers it.
    assert 1e-5 < _lost(results) < 5e-3
    # Every mean can be told in bfloat16, whatever the codec's own values are.
    applied = results[0]["applied"].float()
    assert torch.equal(applied.bfloat16().float(), applied)
    sent, more = (one[0]["timings"][-1].wire_bytes for one in (results, exact_inside))
    assert sent < more
    across = 2 * sent - more
    assert 0 < across < sent


def test_hybrid_shows_a_bad_value_to_all_and_restores():
    results = _run(everything("int8", exchange="hybrid"), spoiled_step=5)
    for result in results:
        finite = result["applied"].isfinite().all(dim=1)
        assert finite.tolist() == [step != 5 for step in range(1, 13)]
        assert result["owed"].isfinite().all()
        assert result["num_nonfinite_results"] == 1


def test_large_bucket_goes_in_parts():
    results = _run(everything("int8"), num_steps=4, shapes=[(700, 1001), (5,)], bucket_cap_mb=25)
    error = (results[0]["applied"] - _exact(results)).norm() / _exact(results).norm()
    assert float(error) < 0.02
    assert _lost(results) < 1e-6


def test_bucket_of_a_few_elements_is_exchanged_flat():
    results = _run(everything("int8"), shapes=[(2, 2), (1,)])
    assert _lost(results) < 1e-6
    numbers = [timing.wire_bytes for timing in results[0]["timings"] if timing.step > 3]
    # Four ranks send each other a value and a scale, padded to 16 bytes each, twice.
    assert set(numbers) == {2 * 3 * (256 + 16)}


@pytest.mark.parametrize("codec", CODECS)
def test_toggling_flat_and_hierarchical_loses_nothing(codec):
    plans = {
        2: everything(codec, exchange="hierarchical"),
        9: everything(codec, exchange="flat"),
        14: everything("int8"),
        20: everything("int8", exchange="flat"),
        25: Plan(),
    }
    results = _run(None, {step: (plan, "carry") for step, plan in plans.items()}, num_steps=90)
    assert _lost(results) < (5e-3 if codec == "bf16" else 1e-5)
    for result in results:
        assert result["owed"][23].any()
        assert not result["owed"][-1].any()
        assert set(result["dropped"].values()) == {None}


def test_switch_moves_no_debt():
    plans = {5: everything("int8", exchange="flat"), 9: everything("int8", exchange="hierarchical")}
    for results in (
        _run(everything("onebit"), {step: (plan, "carry")}, num_steps=step) for step, plan in plans.items()
    ):
        assert _lost(results) < 1e-6


def test_exemptions_that_change_are_flushed():
    plans = {6: everything("onebit", exempt_patterns=("*.0", "*.2")), 14: everything("onebit")}
    results = _run(everything("onebit"), {step: (plan, "carry") for step, plan in plans.items()}, num_steps=40)
    assert _lost(results) < 1e-5


@pytest.mark.parametrize("codec", CODECS)
def test_rollback_is_exact_from_its_very_step(codec):
    results = _run(everything(codec), {5: (Plan(), "drop")}, num_steps=8)
    difference = (results[0]["applied"] - _exact(results)).norm(dim=1)
    assert (difference[:4] > 1e-2).all()
    assert (difference[4:] < 1e-4).all()
    assert all(result["dropped"][5] > 0 for result in results)
    assert not any(result["owed"][4:].any() for result in results)


@pytest.mark.parametrize("codec", CODECS)
def test_nonfinite_gradient_reaches_every_rank_and_leaves_the_residual_as_it_was(codec):
    results = _run(everything(codec), num_steps=9, spoiled_step=6)
    for rank, result in enumerate(results):
        finite = result["applied"].isfinite().all(dim=1).tolist()
        assert finite == [step != 6 for step in range(1, 10)]
        assert result["num_nonfinite_results"] == 1
        assert result["nonfinite"] == ([(6, ("weights.2",))] if rank == 3 else [])
        assert result["owed"].isfinite().all()
        # weights.2 and what shares its bucket keep what they owed; the other bucket went on.
        place = slice(40 * 70 + 33, 40 * 70 + 33 + 3000)
        assert torch.allclose(result["owed"][4][place], result["owed"][5][place], rtol=0, atol=1e-5)
        assert any(not torch.equal(one["owed"][5][place], one["owed"][6][place]) for one in results)


def test_memory_and_bytes_of_a_rank_are_those_of_its_shard():
    shapes = [(256, 256)]
    two_levels = _run(everything("int8"), num_steps=3, shapes=shapes)
    flat = _run(everything("int8", exchange="flat"), num_steps=3, shapes=shapes)
    payload = 256 * 256 + 2 * 256
    inside = 2 * 4 * (256 * 256) // 2
    assert {timing.wire_bytes for timing in two_levels[0]["timings"]} == {inside + payload // 2}
    assert {timing.wire_bytes for timing in flat[0]["timings"]} == {2 * 3 * payload // 4}


def _weigh(rank, world_size):
    _, exchange, _ = wrap(Given((1024, 1024)), None, nodes=NODES)
    return exchange.weigh(everything("onebit")).memory_bytes, exchange.weigh(
        everything("onebit", exchange="flat")
    ).memory_bytes


def test_residuals_live_on_the_shard_only():
    for two_levels, flat in run_ranks(4, _weigh):
        megabytes = 1024 * 1024
        # Half the elements: a residual each, an owner's two for half of those. Scratch: two wires and the shard.
        residuals, scratch = 4 * megabytes // 2 + 2 * 4 * megabytes // 4, 2 * 4 * megabytes + 4 * megabytes // 2
        assert 0 <= two_levels - residuals - scratch < 0.4 * megabytes
        assert flat > 4 * megabytes + 2 * 4 * megabytes // 4


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (((0, 1, 2, 3),), "all ranks are on one node"),
        (((0,), (1,), (2,), (3,)), "every node has one rank"),
        (((0, 1, 2), (3,)), "nodes have different numbers of ranks"),
    ],
)
def test_other_nodes_fall_back_to_flat_with_the_reason(nodes, reason):
    asked = _run(everything("int8", exchange="hierarchical"), num_steps=5, nodes=nodes)
    flat = _run(everything("int8", exchange="flat"), num_steps=5, nodes=nodes)
    assert asked[0]["flat_reason"] == flat[0]["flat_reason"] == reason
    assert torch.equal(asked[0]["applied"], flat[0]["applied"])


def _reasons(rank, world_size):
    _, exchange, _ = wrap(Given((64, 64)), None, nodes=NODES)
    plans = (Plan(), everything("int8", exchange="flat"), everything("powersgd"), everything("int8"))
    return [exchange.weigh(plan).route().flat_reason for plan in plans]


def test_plan_and_codec_can_be_the_reason():
    wanted = ["nothing is compressed", "the plan asks for it", "the codec needs whole matrices", ""]
    assert run_ranks(4, _reasons) == [wanted] * 4


def _wrong(rank, world_size):
    wrap(Given((4, 4)), None, nodes=((0, 1), (1,)))


def test_nodes_that_miss_a_rank_are_refused():
    with pytest.raises(RankFailedError, match="wanted: each rank from 0 to 1 once"):
        run_ranks(2, _wrong)


def _train(rank, world_size, ddp_arguments):
    """A model whose buckets are rebuilt after the first backward, under switches and a changed exchange."""
    plans = [everything("int8"), everything("onebit", exchange="flat"), Plan(), Plan(codec="int8", min_elements=99)]
    switches = {step: (copy.deepcopy(plans[step % 4]), "carry" if step % 3 else "drop") for step in range(2, 30, 3)}
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 50), torch.nn.Tanh(), torch.nn.Linear(50, 50), torch.nn.Linear(50, 1)]
    model, _, script = wrap(
        torch.nn.Sequential(*layers),
        everything("int8"),
        switches,
        nodes=NODES,
        bucket_cap_mb=0.005,
        **ddp_arguments,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        data = torch.randn(16, 20, generator=generator)
        loss = (model(data) - data.sum(dim=1, keepdim=True).tanh()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert replicas_equal(model)
    assert not script.errors
    return losses


@pytest.mark.parametrize(
    "ddp_arguments",
    [{}, {"static_graph": True}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}],
    ids=["default", "static_graph", "find_unused", "bucket_view"],
)
def test_training_goes_on_through_bucket_rebuild_and_switches(ddp_arguments):
    for losses in run_ranks(4, _train, ddp_arguments):
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def _resume(rank, world_size, codec, first, second):
    """Steps with ranks on some nodes, then in a new exchange, on others, that takes over the state."""
    generator = torch.Generator().manual_seed(rank)
    own, applied, state = torch.zeros(5896).double(), torch.zeros(5896).double(), None
    for nodes in (first, second):
        model, exchange, script = wrap(Given(*SHAPES), everything(codec), nodes=nodes, bucket_cap_mb=0.02)
        if state is not None:
            exchange.load_state_dict(state)
        for _ in range(5):
            gradients = [torch.randn(shape, generator=generator) for shape in SHAPES]
            # Not every rank of a node has a part of this one, so that their powers differ.
            gradients[0] *= 1000
            model.zero_grad()
            model(gradients).backward()
            own += _flat(gradients)
            applied += _flat(gradients_of(model))
        state, owed = exchange.state_dict(), exchange.owed()
        exchange.close()
        assert not script.errors
    return own, applied, _flat(owed[f"weights.{index}"] for index in range(4))


@pytest.mark.parametrize(("codec", "limit"), [("onebit", 1e-6), ("fp16", 4e-3)])
@pytest.mark.parametrize(
    ("first", "second"),
    [((), NODES), (NODES, ()), (NODES, ((0, 2), (1, 3)))],
    ids=["from flat", "to flat", "moved"],
)
def test_state_goes_over_to_ranks_on_other_nodes(codec, limit, first, second):
    results = run_ranks(4, _resume, codec, first, second)
    wanted = sum(own for own, _, _ in results) / 4
    assert all(torch.equal(applied, results[0][1]) for _, applied, _ in results)
    got = results[0][1] + sum(owed for _, _, owed in results) / 4
    assert float((got - wanted).norm() / wanted.norm()) < limit


def _attached(rank, world_size, folder, places):
    """Train as torchrun would start this rank on its node; what the session found out of it."""
    os.environ.update({"GROUP_RANK": str(places[rank]), "LOCAL_WORLD_SIZE": str(places.count(places[rank]))})
    model, optimizer = make_model()
    session = attach(model, optimizer, folder, plan={"codec": "int8", "min_elements": 64})
    for step in range(4):
        session.step(loss=train_step(model, optimizer, batch(rank, step)))
    exchange = session._steering.exchange
    found = session._membership.nodes, session._membership.local_ranks, exchange.weigh(exchange.plan).route()
    is_equal = replicas_equal(model)
    session.close()
    return *found, is_equal


@pytest.mark.parametrize(
    ("places", "nodes", "reason"),
    [
        ((1, 1, 0, 0), ((0, 1), (2, 3)), ""),
        ((0, 1, 0, 1), ((0, 2), (1, 3)), ""),
        ((0, 0, 0, 1), ((0, 1, 2), (3,)), "nodes have different numbers of ranks"),
    ],
)
def test_attach_takes_the_nodes_from_where_ranks_were_started(places, nodes, reason, tmp_path):
    for rank, (found, local_ranks, route, is_equal) in enumerate(run_ranks(4, _attached, str(tmp_path), places)):
        assert found == nodes
        assert local_ranks == next(node for node in nodes if rank in node)
        assert route.flat_reason == reason
        assert (route.node_bytes is None) == bool(reason)
        assert is_equal


def _routes(rank, world_size):
    _, exchange, _ = wrap(Given((1024, 1024), (1024,)), None, nodes=NODES)
    plans = (Plan(codec="int8"), Plan(codec="int8", exchange="flat"), Plan())
    return [(route.wire_bytes, route.node_bytes) for route in (exchange.weigh(plan).route() for plan in plans)]


def test_route_states_the_bytes_that_leave_a_node():
    numel, vector = 1024 * 1024, 4 * 1024
    payload, exact = numel + 2 * numel // 256, 2 * 3 * vector // 4
    for two_levels, flat, none in run_ranks(4, _routes):
        # Each rank exchanges half of the payload with one other; the vector goes round in a ring.
        assert two_levels == (2 * 4 * numel // 2 + payload // 2 + exact, 2 * (payload // 2) + exact)
        assert flat == (2 * 3 * payload // 4 + exact, None)
        assert none == (2 * 3 * (4 * numel + vector) // 4, None)
