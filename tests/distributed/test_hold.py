"""Exact steps in the midst of compressed ones: what the codec owes is neither added nor lost."""

import pytest
import torch
from distributed.hooked import CODECS, Given, everything, gradients_of, wrap
from distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

SHAPES = [(40, 70), (33,), (300, 10)]
NUM_STEPS, HELD = 14, range(6, 10)


def _gradients(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def _train(rank, world_size, codec, steps, held):
    """Average the gradients of `steps`, those in `held` exactly; what was applied, and states, by step."""
    model, exchange, script = wrap(Given(*SHAPES), everything(codec), bucket_cap_mb=0.02)
    steps = list(steps)

    def begin_sync():
        if steps[exchange.num_syncs - 1] == held.start:
            exchange.hold(len(held))

    script.begin_sync = begin_sync
    applied, states, were_held = {}, {}, []
    for step in steps:
        model.zero_grad()
        model(_gradients(rank, step)).backward()
        applied[step] = torch.cat([gradient.flatten() for gradient in gradients_of(model)])
        states[step] = exchange.state_dict()
        if exchange.is_held:
            were_held.append(step)
    return applied, states, were_held


def _held_run(rank, world_size, codec):
    return _train(rank, world_size, codec, range(NUM_STEPS), HELD)


def _run_without_those_steps(rank, world_size, codec):
    return _train(rank, world_size, codec, [step for step in range(NUM_STEPS) if step not in HELD], range(0))


def _debts(state):
    """All that a codec owes, as bytes that can be compared."""
    owned = [part for name in sorted(state["owner_residuals"]) for _, part in state["owner_residuals"][name]]
    parts = [state["residuals"][name] for name in sorted(state["residuals"])] + owned
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("codec", [*CODECS, "powersgd"])
def test_held_steps_are_exact_and_leave_no_other_trace(codec):
    held = run_ranks(3, _held_run, codec)
    without = run_ranks(3, _run_without_those_steps, codec)
    for rank, (applied, states, were_held) in enumerate(held):
        assert were_held == list(HELD)
        for step in HELD:
            exact = sum(torch.cat([part.flatten() for part in _gradients(one, step)]) * (1 / 3) for one in range(3))
            assert torch.allclose(applied[step], exact, rtol=1e-6, atol=1e-7)
        before = _debts(states[HELD.start - 1])
        assert before.any()
        assert all(torch.equal(_debts(states[step]), before) for step in HELD)
        for step, expected in without[rank][0].items():
            assert torch.equal(applied[step], expected), step
        assert all(torch.equal(applied[step], held[0][0][step]) for step in applied)


def _switched_run(rank, world_size):
    model, exchange, script = wrap(Given(*SHAPES), everything("int8"), bucket_cap_mb=0.02)

    def begin_sync():
        if exchange.num_syncs == 3:
            exchange.hold(10)
        if exchange.num_syncs == 5:
            exchange.switch(exchange.prepare(everything("int4")), residuals="carry")

    script.begin_sync = begin_sync
    were_held = []
    for step in range(7):
        model.zero_grad()
        model(_gradients(rank, step)).backward()
        were_held.append(exchange.is_held)
    return were_held, exchange.plan.codec


def test_a_switch_ends_the_hold():
    for were_held, codec in run_ranks(2, _switched_run):
        assert were_held == [False, False, True, True, False, False, False]
        assert codec == "int4"
