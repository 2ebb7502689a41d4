"""Trials of mixed precision and accumulation: what a model may be made of, and how it may be run."""

import pytest
import torch
import torch.distributed as dist
from distributed.hooked import everything, gradients_of, replicas_equal, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan, registry
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

CODECS = tuple(name for name in registry.available() if name != "none")


def plan_for(codec, **fields):
    """Return a plan under which even the small matrices of these trials are compressed."""
    parameters = {"rank": 1} if codec == "powersgd" else {}
    return Plan(codec="none") if codec == "none" else everything(codec, parameters=parameters, **fields)


def each(rank, world_size, trial, codecs, *args):
    """Run a trial with one codec after the other in the same processes; results by codec."""
    results = {}
    for codec in codecs:
        try:
            results[codec] = trial(rank, world_size, codec, *args)
        except Exception as error:
            raise AssertionError(f"{trial.__name__} with {codec}: {error}") from error
    return results


def run_each(trial, codecs, *args, timeout=120):
    """Return (codec, results of both ranks) for each codec."""
    first, second = run_ranks(2, each, trial, codecs, *args, timeout=timeout)
    return [(codec, (first[codec], second[codec])) for codec in codecs]


class Mixed(nn.Module):
    """bfloat16 or float16 matrices beside float32 norms."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16, dtype=dtype)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 1)

    def forward(self, data):
        return self.last(self.norm(self.first(data.to(self.first.weight.dtype)).float()))


def _c06(rank, world_size, codec, dtype, bucket_cap_mb):
    model, exchange, script = wrap(Mixed(dtype), plan_for(codec), bucket_cap_mb=bucket_cap_mb)
    plain = DistributedDataParallel(Mixed(dtype), bucket_cap_mb=bucket_cap_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for step in range(20):
        data = torch.randn(8, 16, generator=generator)
        for one in (model, plain) if step == 0 else (model,):
            one.zero_grad()
            one(data).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad.dtype == parameter.dtype
            assert parameter.grad.isfinite().all()
        if step == 0 and codec == "none":
            assert all(torch.equal(*pair) for pair in zip(gradients_of(model), gradients_of(plain), strict=True))
        optimizer.step()
    assert not script.errors
    assert all(tensor.dtype == torch.float32 for tensor in exchange.owed().values())
    # Buckets are of one dtype each, and so are the residuals' owners.
    by_bucket = [{slot.name for slot in shape.slots} for shape in exchange._book.shapes]
    halves = {"first.weight", "first.bias"}
    assert all(names <= halves or not names & halves for names in by_bucket)
    return replicas_equal(model)


@pytest.mark.parametrize(
    ("dtype", "bucket_cap_mb"), [(torch.bfloat16, 25), (torch.bfloat16, 0.001), (torch.float16, 25)]
)
def test_c06_half_precision_beside_float32_norms(dtype, bucket_cap_mb):
    for codec, are_equal in run_each(_c06, ["none", *CODECS], dtype, bucket_cap_mb):
        assert are_equal == (True, True), codec


class Looking(nn.Module):
    """A sparse embedding beside a dense matrix."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 4, sparse=True)
        self.linear = nn.Linear(16, 16, bias=False)

    def forward(self, ids, data):
        return self.embedding(ids).sum() + self.linear(data).sum()


def _c08(rank, world_size, codec):
    model, exchange, script = wrap(Looking(), plan_for(codec))
    ids = torch.tensor([1, 1, 3] if rank == 0 else [3, 7])
    for _ in range(3):
        model.zero_grad()
        model(ids, torch.full((2, 16), 1.0 + rank)).backward()
    assert not script.errors
    assert codec == "none" or any(timing.codec for timing in script.timings)
    # Not one row of the embedding has a residual.
    assert set(exchange.owed()) <= {"linear.weight"}
    gradient = model.module.embedding.weight.grad.coalesce()
    return gradient.indices().flatten().tolist(), gradient.values().tolist(), gradients_of(model)[1]


def test_c08_sparse_embedding_travels_exactly():
    for codec, results in run_each(_c08, ["none", *CODECS]):
        for rows, values, dense in results:
            assert rows == [1, 3, 7], codec
            assert values == [[1.0] * 4, [1.0] * 4, [0.5] * 4], codec
            if codec != "topk":
                assert torch.allclose(dense, torch.full((16, 16), 3.0), rtol=0.01), codec


class Scalar(nn.Module):
    """One weight, whose gradient is what it is multiplied with."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def forward(self, factor):
        return self.weight * factor


def _c10(rank, world_size, codec):
    """Four micro-batches, the last one synchronised; returns gradients, what is owed before and after, counts."""
    model, exchange, script = wrap(
        Scalar(), plan_for(codec, warmup_steps=2) if codec == "onebit" else plan_for(codec)
    )
    rows = []
    for _ in range(10):
        model.zero_grad()
        before = sum(float(tensor) for tensor in exchange.owed().values())
        for micro in range(1, 5):
            with model.no_sync() if micro < 4 else torch.enable_grad():
                model(float(micro * (1 + rank))).backward()
        after = sum(float(tensor) for tensor in exchange.owed().values())
        rows.append((float(model.module.weight.grad), before, after))
    assert not script.errors
    num_compressed = len([timing for timing in script.timings if timing.codec])
    return rows, exchange.num_syncs, script.num_ended, len(script.timings), num_compressed


@pytest.mark.parametrize("codec", ["none", "bf16", "fp16", "onebit"])
def test_c10_accumulation_is_one_exchange_a_step(codec):
    results = run_ranks(2, _c10, codec)
    rows = [rows for rows, *_ in results]
    for number, (first, second) in enumerate(zip(*rows, strict=True), start=1):
        assert first[0] == second[0]
        # What was applied and is owed now is what was asked for and was owed before, on average.
        assert first[0] + (first[2] + second[2]) / 2 == pytest.approx(15 + (first[1] + second[1]) / 2, rel=1e-3)
        if codec != "onebit" or number <= 2:
            assert first[0] == pytest.approx(15.0, rel=0.01)
    for _, num_syncs, num_ended, num_timings, num_compressed in results:
        assert num_syncs == num_ended == num_timings == 10
        # Two warm-up steps are two optimizer steps, not two micro-batches.
        assert num_compressed == {"none": 0, "onebit": 8}.get(codec, 10)


def _mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 12))


def _c11(rank, world_size, num_micro, with_hook):
    """Train with a static graph; returns (bytes on the wire by step, whether replicas are equal) or the error."""
    if with_hook:
        model, _, script = wrap(_mlp(), plan_for("onebit"), static_graph=True)
    else:
        model, script = DistributedDataParallel(_mlp(), static_graph=True), None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    try:
        for _ in range(10):
            optimizer.zero_grad()
            for micro in range(num_micro):
                with model.no_sync() if micro < num_micro - 1 else torch.enable_grad():
                    model(torch.randn(4, 12, generator=generator)).square().mean().backward()
            optimizer.step()
    except RuntimeError as error:
        return str(error)[:60], None
    sent = {timing.step for timing in script.timings if timing.wire_bytes > 0} if script else set(range(1, 11))
    return sent == set(range(1, 11)), replicas_equal(model)


@pytest.mark.parametrize("num_micro", [1, 2])
def test_c11_static_graph_ends_as_plain_ddp_ends(num_micro):
    hooked, plain = run_ranks(2, _c11, num_micro, True), run_ranks(2, _c11, num_micro, False)
    assert hooked == plain
    if num_micro == 1:
        assert hooked == [(True, True)] * 2


def _c12(rank, world_size, nesting):
    """none, then onebit from step 10, then none from step 20; returns weights and bytes by step."""
    switches = {10: (plan_for("onebit"), "carry"), 20: (Plan(), "drop")}
    net = _mlp()
    if nesting == "inside":
        model, _, script = wrap(torch.compile(net, backend="aot_eager"), None, switches)
        called = model
    else:
        model, _, script = wrap(net, None, switches)
        called = torch.compile(model, backend="aot_eager") if nesting == "outside" else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(29):
        optimizer.zero_grad()
        called(torch.randn(8, 12, generator=generator)).square().mean().backward()
        optimizer.step()
    assert not script.errors
    assert replicas_equal(model)
    sent = [sum(t.wire_bytes for t in script.timings if t.step == step) for step in range(1, 30)]
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]), sent


@pytest.mark.parametrize("nesting", ["inside", "outside"])
@pytest.mark.filterwarnings("ignore")
def test_c12_compiled_models_are_compressed_and_switched_as_eager_ones(nesting):
    compiled, eager = run_ranks(2, _c12, nesting, timeout=170), run_ranks(2, _c12, "none")
    for (weights, sent), (wanted, sent_eagerly) in zip(compiled, eager, strict=True):
        assert torch.allclose(weights, wanted, atol=1e-5)
        assert sent == sent_eagerly
        assert all(sent[step - 1] < sent[0] / 4 for step in range(10, 20))
        assert all(sent[step - 1] == sent[0] for step in (*range(1, 10), *range(20, 30)))


def _c13(rank, world_size, codec, as_view):
    model, exchange, script = wrap(_mlp(), plan_for(codec), gradient_as_bucket_view=as_view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(10):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        model(torch.randn(8, 12, generator=generator)).square().mean().backward()
        before = exchange.owed()
        for parameter in model.parameters():
            parameter.grad.mul_(0.5)
        after = exchange.owed()
        assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
        optimizer.step()
    assert not script.errors
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_c13_gradients_that_are_views_of_the_bucket_make_no_difference():
    pairs = zip(run_each(_c13, ["none", *CODECS], True), run_each(_c13, ["none", *CODECS], False), strict=True)
    for (codec, views), (_, copies) in pairs:
        assert all(torch.equal(*both) for both in zip(views, copies, strict=True)), codec


def _c15(rank, world_size, which, codec):
    """Two models of one shape, or one of them; D goes back to none at its step 25."""
    models = {}
    for name in "GD":
        if name in which:
            torch.manual_seed(ord(name))
            switches = {25: (Plan(), "drop")} if name == "D" else {}
            models[name] = wrap(nn.Linear(8, 8, bias=False), plan_for(codec), switches)
    optimizers = {name: torch.optim.SGD(model.parameters(), lr=0.05) for name, (model, *_) in models.items()}
    generators = {name: torch.Generator().manual_seed(10 * ord(name) + rank) for name in models}
    for _ in range(50):
        for name, (model, _, _) in models.items():
            optimizers[name].zero_grad()
            model(torch.randn(4, 8, generator=generators[name])).square().mean().backward()
            optimizers[name].step()
    found = {}
    for name, (model, _, script) in models.items():
        assert not script.errors
        compressed = {timing.step for timing in script.timings if timing.codec}
        found[name] = (next(model.parameters()).detach().clone(), compressed)
    return found


@pytest.mark.parametrize("codec", ["onebit", "powersgd"])
def test_c15_two_models_of_one_shape_share_nothing(codec):
    both = run_ranks(2, _c15, "GD", codec)
    for name in "GD":
        alone = run_ranks(2, _c15, name, codec)
        for together, solo in zip(both, alone, strict=True):
            assert torch.equal(together[name][0], solo[name][0])
            assert together[name][1] == solo[name][1] == set(range(1, 25 if name == "D" else 51))


def _c16(rank, world_size, codec):
    model, exchange, script = wrap(nn.Linear(16, 16, bias=False), plan_for(codec))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    applied = []
    with Join([model]):
        for _ in range(5 if rank == 0 else 3):
            optimizer.zero_grad()
            model(torch.ones(1, 16)).sum().backward()
            applied.append(gradients_of(model)[0])
            optimizer.step()
    assert not script.errors
    assert all(gradient.isfinite().all() for gradient in applied)
    return [float(gradient.mean()) for gradient in applied], exchange.num_syncs


def test_c16_rank_without_data_ends_with_the_others():
    for codec, ((first, num_first), (second, num_second)) in run_each(_c16, ["none", *CODECS]):
        if codec != "topk":
            assert first == pytest.approx([1.0, 1.0, 1.0, 0.5, 0.5], rel=0.02), codec
            assert second == pytest.approx([1.0] * 3, rel=0.02), codec
        assert num_first == num_second == 5, codec


class Four(nn.Module):
    """A weight whose gradient is given, with 3 and 4 in it."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(8, 8))

    def forward(self, wanted):
        return (self.weight * wanted).sum()


def _c22(rank, world_size, codec, with_scaler):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=with_scaler)
    model, exchange, script = wrap(Four(), plan_for(codec), loss_scale=scaler.get_scale)
    wanted = torch.zeros(8, 8)
    wanted.view(-1)[:2] = torch.tensor([3.0, 4.0])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    norms, applied, scales = [], torch.zeros_like(wanted), []
    for step in range(8):
        optimizer.zero_grad()
        scale = scaler.get_scale()
        # One step overflows on one rank: the scaler skips it and halves the scale.
        loss = scaler.scale(model(wanted)) * (torch.inf if step == 4 and rank == 1 and with_scaler else 1.0)
        loss.backward()
        scaler.unscale_(optimizer)
        is_good = bool(gradients_of(model)[0].isfinite().all())
        if is_good:
            applied += gradients_of(model)[0]
        before = exchange.owed()
        norms.append((is_good, float(nn.utils.clip_grad_norm_(model.parameters(), 1.0))))
        assert all(torch.equal(tensor, exchange.owed()[name]) for name, tensor in before.items())
        clipped = gradients_of(model)[0]
        scaler.step(optimizer)
        scaler.update()
        scales.append(scale)
    assert not script.errors
    # What was applied before clipping and what is owed, in the unit of the last step, add up to what was asked for.
    owed = sum((tensor for tensor in exchange.owed().values()), torch.zeros_like(wanted)).view(wanted.shape)
    num_good = sum(is_good for is_good, _ in norms)
    return norms, clipped, applied, owed / scales[-1], num_good * wanted, scales


@pytest.mark.parametrize("with_scaler", [False, True])
def test_c22_clipping_comes_after_the_average_and_the_residual_follows_the_scale(with_scaler):
    for codec, results in run_each(_c22, ["none", *CODECS], with_scaler):
        assert [is_good for is_good, _ in results[0][0]] == [step != 4 or not with_scaler for step in range(8)], (
            codec
        )
        assert str(results[0][0]) == str(results[1][0]), codec
        assert torch.equal(results[0][1], results[1][1]), codec
        # Grows every two good steps, and is halved by a bad one.
        scales = [1, 1, 2, 2, 4, 2, 2, 4] if with_scaler else [1 / 1024] * 8
        assert results[0][-1] == results[1][-1] == [1024 * scale for scale in scales]
        owed = sum(result[3] for result in results) / 2
        for norms, clipped, applied, _, wanted, _ in results:
            assert float(clipped.norm()) == pytest.approx(min(1.0, norms[-1][1]), rel=1e-3), codec
            if codec == "none":
                assert [norm for is_good, norm in norms if is_good] == pytest.approx([5.0] * (8 - with_scaler))
                assert torch.allclose(clipped.view(-1)[:2], torch.tensor([0.6, 0.8]), atol=1e-6)
            assert torch.allclose(applied + owed, wanted, rtol=1e-4, atol=1e-4), codec


class Unusual(nn.Module):
    """Tied, channels_last, transposed, complex, scalar and empty parameters, and one that is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(30, 16)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.embedding.weight
        self.convolution = nn.Conv2d(4, 8, 3, padding=1).to(memory_format=torch.channels_last)
        self.transposed = nn.Parameter(torch.randn(20, 12).t())
        self.turning = nn.Parameter(torch.randn(6, 5, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.zeros(0, 4))
        self.frozen = nn.Parameter(torch.randn(40, 40), requires_grad=False)

    def forward(self, ids, image):
        words = self.head(self.embedding(ids)).square().mean()
        pixels = self.convolution(image).square().mean() * self.scale
        others = self.transposed.square().mean() + self.turning.abs().mean() + self.nothing.sum()
        return words + pixels + others + (self.frozen.sum() * 0)


def _unusual(rank, world_size, codec):
    model, exchange, script = wrap(Unusual(), plan_for(codec), bucket_cap_mb=0.001)
    plain = DistributedDataParallel(Unusual(), bucket_cap_mb=0.001)
    generator = torch.Generator().manual_seed(rank)
    own = {
        name: torch.zeros(p.shape, dtype=p.dtype) for name, p in model.module.named_parameters() if p.requires_grad
    }
    wanted, applied = {k: v.clone() for k, v in own.items()}, {k: v.clone() for k, v in own.items()}
    for _ in range(6):
        ids = torch.randint(30, (8,), generator=generator)
        image = torch.randn(2, 4, 6, 6, generator=generator)
        for one, total in ((model, applied), (plain, wanted)):
            one.zero_grad()
            one(ids, image).backward()
            for name, parameter in one.module.named_parameters():
                if parameter.requires_grad:
                    assert parameter.grad.shape == parameter.shape
                    total[name] += parameter.grad
    assert not script.errors
    owed = exchange.owed()
    for name in sorted(own):
        debt = owed.get(name, torch.zeros(own[name].shape)).contiguous().clone()
        dist.all_reduce(debt)
        difference = applied[name] + debt / world_size - wanted[name]
        limit = 4e-3 if codec in ("bf16", "fp16") else 1e-5
        assert float(difference.abs().sum()) <= limit * float(wanted[name].abs().sum() + 1e-9), name
        if wanted[name].is_complex():
            assert torch.equal(applied[name], wanted[name])
    return sorted(owed)


def test_tied_strided_complex_scalar_and_empty_parameters():
    for codec, results in run_each(_unusual, ["none", *CODECS]):
        for names in results:
            assert "turning" not in names, codec
            assert "frozen" not in names, codec
            assert names == [] if codec == "none" else "embedding.weight" in names, codec
