"""Chains that are issued at once, as on a CUDA stream, against those of the Lane's thread."""

import pytest
import torch
from distributed.hooked import CODECS, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan
from gradwire_compression.collectives.lane import StreamLane

pytestmark = pytest.mark.distributed

SWITCH, SPOILED, NUM_STEPS = 6, 3, 12


def _train(rank, world_size, codec, is_stream):
    """Several buckets, exempt tensors, one step that is not finite on one rank, and a flush in the end."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(60, 70), torch.nn.Tanh(), torch.nn.Linear(70, 50))
    plan, switches = Plan(codec=codec), {SWITCH: (Plan(), "carry")}
    model, exchange, script = wrap(module, plan, switches, bucket_cap_mb=0.01)
    if is_stream:
        exchange._lane.close()
        exchange._lane = StreamLane(torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    owed = {}
    for step in range(1, NUM_STEPS + 1):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 60)).square().mean()
        (loss * (torch.inf if step == SPOILED and rank == 1 else 1.0)).backward()
        if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
            optimizer.step()
        if step == SWITCH - 1:
            owed = exchange.owed()
    told = script.nonfinite_parameters, script.num_nonfinite_results, script.flushes
    values = [parameter.detach().clone() for parameter in model.parameters()]
    assert not script.errors
    return values, owed, told, len(script.timings)


def _both(rank, world_size, codec):
    (values, owed, told, num_timings), other = (_train(rank, world_size, codec, stream) for stream in (False, True))
    assert all(torch.equal(one, two) for one, two in zip(values, other[0], strict=True))
    assert owed
    assert owed.keys() == other[1].keys()
    assert all(torch.equal(residual, other[1][name]) for name, residual in owed.items())
    assert (told, num_timings) == other[2:]
    return told


@pytest.mark.parametrize("codec", [*CODECS, "powersgd"])
def test_chains_issued_at_once_give_the_same_bits(codec):
    quiet, spoiled = run_ranks(2, _both, codec)
    for _, num_nonfinite_results, flushes in (quiet, spoiled):
        assert num_nonfinite_results > 0
        assert len(flushes) == 1
    assert quiet[0] == []
    assert {step for step, _ in spoiled[0]} == {SPOILED}
