"""Gradient match: the decoded mean of real exchanges against the exact mean of what was to be sent."""

import pytest
import torch
from distributed.hooked import CODECS, Given, everything, gradients_of, wrap
from distributed.ranks import run_ranks

pytestmark = pytest.mark.distributed

SHAPES = [(40, 70), (33,), (300, 10)]


def _gradients(rank, step, dtype):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def _sampled_run(rank, world_size, codec, dtype, nodes=()):
    """Matches told, and the same figures of whole gradients, by the script's own arithmetic."""
    model, exchange, script = wrap(Given(*SHAPES, dtype=dtype), everything(codec), bucket_cap_mb=0.02, nodes=nodes)
    script.begin_sync = lambda: exchange.sample_match() if exchange.num_syncs % 2 == 0 else None
    wanted, got = [], []
    for step in range(1, 9):
        owed = exchange.owed()
        gradients = _gradients(rank, step, dtype)
        model.zero_grad()
        model(gradients).backward()
        zeros = [torch.zeros(shape) for shape in SHAPES]
        parts = [g.float() + owed.get(f"weights.{i}", zeros[i]) for i, g in enumerate(gradients)]
        wanted.append(torch.cat([part.flatten() for part in parts]))
        got.append(torch.cat([gradient.float().flatten() for gradient in gradients_of(model)]))
    exchange.state_dict()
    return [(m.step, m.codec, m.cosine, m.relative_error, m.worst_parameter) for m in script.matches], wanted, got


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("codec", [*CODECS, "powersgd"])
def test_sample_tells_what_the_whole_gradient_would(codec, dtype):
    results = run_ranks(3, _sampled_run, codec, dtype)
    matches = results[0][0]
    assert all(found == matches for found, _, _ in results)
    assert [(step, name) for step, name, *_ in matches] == [(step, codec) for step in (2, 4, 6, 8)]
    for step, _, cosine, error, worst in matches:
        exact = sum(wanted[step - 1] for _, wanted, _ in results).double() / 3
        decoded = results[0][2][step - 1].double()
        assert cosine == pytest.approx(torch.cosine_similarity(exact, decoded, dim=0).item(), abs=0.2)
        # The sample is a tenth of the elements.
        assert 0.3 < error / ((decoded - exact).norm() / exact.norm()).item() < 3
        assert worst.startswith("weights.")


def test_two_levels_are_sampled_with_what_owners_hold():
    results = run_ranks(4, _sampled_run, "int8", torch.float32, ((0, 1), (2, 3)))
    for step, _, cosine, error, _ in results[0][0]:
        assert cosine > 0.999, step
        assert error < 0.03


def _broken_tensor_run(rank, world_size):
    """One tensor's gradients cancel out between the ranks but for a little."""
    model, exchange, script = wrap(Given(*SHAPES), everything("onebit"), bucket_cap_mb=0.02)
    script.begin_sync = exchange.sample_match
    for step in range(1, 9):
        gradients = _gradients(0, step, torch.float32)
        gradients[2] = (1 if rank else -1) * gradients[2] + 1e-3 * _gradients(rank, step, torch.float32)[2]
        model.zero_grad()
        model(gradients).backward()
    exchange.state_dict()
    return [(match.worst_parameter, match.worst_cosine, match.cosine) for match in script.matches]


def test_worst_tensor_is_named():
    found = run_ranks(2, _broken_tensor_run)[0]
    assert len(found) == 8
    assert [name for name, _, _ in found].count("weights.2") >= 6
    assert all(worst < whole for _, worst, whole in found)


def _exact_run(rank, world_size):
    model, exchange, script = wrap(Given(*SHAPES), everything("int8"), bucket_cap_mb=0.02)

    def begin_sync():
        exchange.sample_match()
        exchange.hold(3)

    script.begin_sync = begin_sync
    for step in range(3):
        model.zero_grad()
        model(_gradients(rank, step, torch.float32)).backward()
    exchange.state_dict()
    return len(script.matches)


def test_exact_steps_have_no_match():
    assert run_ranks(2, _exact_run) == [0, 0]
