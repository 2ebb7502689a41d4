"""Training that goes on from a saved state: the same bits, other numbers of ranks, damaged and mixed files."""

import copy
import json
import logging
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from distributed.hooked import Given, everything, gradients_of, wrap
from distributed.ranks import run_ranks
from gradwire_compression import Plan, StateError, load_state, redistribute, registry, save_state, seal
from torch import nn

pytestmark = pytest.mark.distributed

CODECS = tuple(name for name in registry.available() if name != "none")
SHAPES = [(40, 70), (33,), (300, 10)]


def plan_for(codec, **fields):
    parameters = {"rank": 1} if codec == "powersgd" else {}
    return everything(codec, parameters=parameters, **fields)


def _c37(rank, world_size, codec, folder, first, last, nodes=()):
    """Train from step `first` to `last`; returns the weights, and the steps in which a codec was used."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    # Two buckets, which DDP deals out anew after the first backward.
    plan = Plan() if codec == "none" else plan_for(codec, warmup_steps=5, force=True)
    model, exchange, script = wrap(net, plan, nodes=nodes, bucket_cap_mb=0.0002)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if first > 1:
        saved = torch.load(f"{folder}/model{rank}.pt", weights_only=True)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        exchange.load_state_dict(load_state(folder, rank=rank, world_size=world_size))
        # What was loaded and not used yet is saved again as it is.
        assert exchange.state_dict()["buckets"] == load_state(folder, rank=rank, world_size=world_size)["buckets"]
    for step in range(first, last + 1):
        data = torch.randn(8, 16, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    if last == 10:
        save_state(exchange.state_dict(), folder)
        torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, f"{folder}/model{rank}.pt")
    assert not script.errors
    num_buckets = {timing.index for timing in script.timings}
    assert len(num_buckets) > 1
    compressed = sorted({timing.step for timing in script.timings if timing.codec})
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()]), compressed


def _c37_in_parts(codec, folder, world_size, nodes=()):
    whole = run_ranks(world_size, _c37, codec, folder, 1, 20, nodes)
    run_ranks(world_size, _c37, codec, folder, 1, 10, nodes)
    resumed = run_ranks(world_size, _c37, codec, folder, 11, 20, nodes)
    for (weights, compressed), (again, compressed_again) in zip(whole, resumed, strict=True):
        assert torch.equal(weights, again)
        assert compressed == (list(range(6, 21)) if codec != "none" else [])
        # The warm-up is over and is not done again.
        assert compressed_again == (list(range(11, 21)) if codec != "none" else [])


# Three ranks sum in an order that depends on an element's place in its bucket, whatever the codec is.
@pytest.mark.parametrize("codec", ["none", *CODECS])
def test_c37_ten_and_ten_steps_are_twenty_bit_for_bit(codec, tmp_path):
    _c37_in_parts(codec, str(tmp_path), 3)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "powersgd"])
def test_c37_holds_for_exchanges_in_two_levels(codec, tmp_path):
    _c37_in_parts(codec, str(tmp_path), 4, ((0, 1), (2, 3)))


class Mixture(nn.Module):
    """Sparse rows, bfloat16 and float32 matrices, a complex, a scalar and an empty parameter."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 8, sparse=True)
        self.first = nn.Linear(8, 16, dtype=torch.bfloat16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 12)
        self.turning = nn.Parameter(torch.randn(6, 5, dtype=torch.complex64))
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.nothing = nn.Parameter(torch.zeros(0, 4))

    def forward(self, ids):
        rows = self.first(self.embedding(ids).bfloat16()).float()
        return (self.last(self.norm(rows)) * self.scale).sum() + self.turning.abs().sum() + self.nothing.sum()


def _mixture(rank, world_size, ddp_arguments):
    """Ten steps in one model, and the last five of them again in another that goes on from a state."""
    runs = []
    state, weights = None, None
    for first in (1, 6):
        net = Mixture()
        model, exchange, script = wrap(net, plan_for("int8"), bucket_cap_mb=0.0005, **ddp_arguments)
        if state is not None:
            net.load_state_dict(weights)
            exchange.load_state_dict(state)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for step in range(first, 11):
            ids = torch.randint(10, (6,), generator=torch.Generator().manual_seed(10 * step + rank))
            optimizer.zero_grad()
            model(ids).backward()
            optimizer.step()
            if step == 5:
                state, weights = exchange.state_dict(), copy.deepcopy(net.state_dict())
        assert not script.errors
        runs.append({name: parameter.detach().clone() for name, parameter in net.named_parameters()})
    return [name for name in runs[0] if not torch.equal(runs[0][name], runs[1][name])]


@pytest.mark.parametrize(
    "ddp_arguments",
    [{}, {"gradient_as_bucket_view": True}, {"find_unused_parameters": True}],
    ids=["default", "bucket view", "find unused"],
)
def test_whatever_a_model_is_made_of_goes_on_with_the_same_bits(ddp_arguments):
    assert run_ranks(3, _mixture, ddp_arguments) == [[]] * 3


def _random(generator):
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def _run(rank, world_size, codec, folder, num_steps, seed):
    """Run random steps, from the folder if there is something in it; returns own and applied sums, and the debt."""
    model, exchange, script = wrap(Given(*SHAPES), plan_for(codec), bucket_cap_mb=0.02)
    note = ""
    if (state := load_state(folder, rank=rank, world_size=world_size)) is not None:
        note = state.get("note", "")
        exchange.load_state_dict(state)
    generator = torch.Generator().manual_seed(seed + rank)
    own, applied = (
        [torch.zeros(shape).double() for shape in SHAPES],
        [torch.zeros(shape).double() for shape in SHAPES],
    )
    before = exchange.owed()
    for _ in range(num_steps):
        gradients = _random(generator)
        model.zero_grad()
        model(gradients).backward()
        own = [sum_ + gradient for sum_, gradient in zip(own, gradients, strict=True)]
        applied = [sum_ + gradient for sum_, gradient in zip(applied, gradients_of(model), strict=True)]
    save_state(exchange.state_dict(), folder)
    assert not script.errors
    return own, applied, before, exchange.owed(), note


@pytest.mark.parametrize(
    ("codec", "old_size", "new_size"),
    [("int8", 2, 3), ("powersgd", 3, 2), ("onebit", 2, 1), ("onebit", 1, 2), ("bf16", 4, 2), ("int8", 4, 2)],
)
def test_debt_is_dealt_out_to_another_number_of_ranks(codec, old_size, new_size, tmp_path):
    first = run_ranks(old_size, _run, codec, str(tmp_path), 6, 0)
    second = run_ranks(new_size, _run, codec, str(tmp_path), 6, 500)
    assert all(note == "" for *_, note in first)
    assert all(f"{old_size} ranks was dealt out to {new_size}" in note for *_, note in second)
    for index in range(len(SHAPES)):
        name = f"weights.{index}"
        wanted, got = torch.zeros(SHAPES[index]).double(), torch.zeros(SHAPES[index]).double()
        for results in (first, second):
            wanted += sum(own[index] for own, *_ in results) / len(results)
            got += results[0][1][index]
        got += sum(owed[name].double() for *_, owed, _ in second if name in owed) / new_size
        assert float((got - wanted).norm() / wanted.norm()) < (4e-3 if codec == "bf16" else 1e-6)
    # Only the new ranks' files are left.
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"gradwire-model-rank{rank}of{new_size}.pt" for rank in range(new_size)
    ]


def _exact_then(rank, world_size):
    """A state of one plan into an exchange that was made with another; sizes of what is owed before and after."""
    model, exchange, _ = wrap(Given(*SHAPES), plan_for("onebit"), bucket_cap_mb=0.02)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(3):
        model(_random(generator)).backward()
    state = exchange.state_dict()
    other, resumed, script = wrap(Given(*SHAPES), Plan(), bucket_cap_mb=0.02)
    resumed.load_state_dict(state)
    assert resumed.plan == exchange.plan
    assert resumed.num_syncs == 3
    same = resumed.state_dict()
    both = exchange.owed(), resumed.owed()
    total = [sum(float(tensor.double().sum()) for tensor in owed.values()) for owed in both]
    sums = torch.tensor(total, dtype=torch.float64)
    dist.all_reduce(sums)
    for one, again in ((model, other), (model, other)):
        gradients = _random(generator)
        for each in (one, again):
            each.zero_grad()
            each(gradients).backward()
        assert all(torch.equal(*pair) for pair in zip(gradients_of(one), gradients_of(again), strict=True))
    assert not script.errors
    equal = [torch.equal(tensor, same["residuals"][name]) for name, tensor in state["residuals"].items()]
    return all(equal) and len(equal) == 3, sums.tolist()


def test_state_brings_its_plan_and_every_owner_its_part():
    for is_equal, (before, after) in run_ranks(3, _exact_then):
        assert is_equal
        assert before == pytest.approx(after, rel=1e-4)


def _die_after_loading(rank, world_size):
    model, exchange, _ = wrap(Given(*SHAPES), plan_for("int8"), bucket_cap_mb=0.002)
    gradients = [torch.ones(shape) for shape in SHAPES]
    for _ in range(2):
        model(gradients).backward()
    exchange.load_state_dict(exchange.state_dict())
    if rank == 1:
        os._exit(0)
    try:
        model(gradients).backward()
    except Exception as error:
        # Not through the parent: a rank that died makes run_ranks fail whatever this one returns.
        raise RuntimeError(f"backward raised {type(error).__name__}: {error}") from error


def test_a_peer_that_dies_in_the_first_step_fails_backward_as_in_any_other():
    with pytest.raises(AssertionError, match=r"backward raised \w+: .*int8: averaging bucket \d failed"):
        run_ranks(2, _die_after_loading)


def _strided_owner(rank, world_size):
    """A state of a contiguous weight into a model whose weight lies transposed."""
    states = []
    for is_transposed in (False, True):
        net = nn.Linear(40, 30, bias=False)
        if is_transposed:
            net.weight = nn.Parameter(net.weight.detach().t().contiguous().t())
        model, exchange, _ = wrap(net, plan_for("int8"))
        model(torch.randn(4, 40)).sum().backward()
        states.append(exchange.state_dict())
    try:
        exchange.load_state_dict(states[0])
    except StateError as error:
        return str(error)
    return ""


def test_weight_that_lies_otherwise_in_memory_is_refused_by_name():
    for text in run_ranks(2, _strided_owner):
        assert "weight lies in memory in the order [1, 0] of its dimensions; the state's was None" in text


def _spoil(rank, world_size, kind):
    """Load states of which one was exchanged, lost, of another step or damaged; returns every rank's error."""
    model, exchange, _ = wrap(Given(*SHAPES), plan_for("int8"))
    generator = torch.Generator().manual_seed(rank)
    states = []
    for _ in range(2):
        model(_random(generator)).backward()
        states.append(exchange.state_dict())
    state = states[-1]
    if kind == "swapped":
        gathered = [None] * world_size
        dist.all_gather_object(gathered, state)
        state = gathered[1 - rank]
    elif rank == 1:
        state = copy.deepcopy(state)
        if kind == "other step":
            state = states[0]
        elif kind == "missing":
            state = None
        elif kind == "damaged":
            state["residuals"]["weights.0"][3, 4] += 1e-6
        elif kind == "foreign":
            state = seal({**state, "residuals": {"weights.9": torch.zeros(3)}})
        elif kind == "other plan":
            state = seal({**state, "plan": Plan(codec="onebit").to_dict()})
    before = exchange.owed()
    try:
        exchange.load_state_dict(state)
    except StateError as error:
        assert all(torch.equal(tensor, exchange.owed()[name]) for name, tensor in before.items())
        model(_random(generator)).backward()
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "on_first", "on_second"),
    [
        ("swapped", "rank 0 loads the state that rank 1 saved", "rank 0 loads the state that rank 1 saved"),
        ("other step", r"rank 1 and rank 0 .* another step \(1 and 2\)", r"another step \(1 and 2\)"),
        ("missing", "rank 1 cannot go on from its state", "this rank has no state"),
        ("damaged", "rank 1 cannot go on from its state", "damaged: its content does not match"),
        ("foreign", "rank 1 cannot go on", r"residual of weights.9 has shape \[3\]; wanted: no such parameter"),
        ("other plan", "another plan", "another plan"),
    ],
)
def test_state_that_does_not_belong_is_refused_by_every_rank(kind, on_first, on_second):
    first, second = run_ranks(2, _spoil, kind)
    assert re.search(on_first, first)
    assert re.search(on_second, second)


EMPTY = {
    "loss_scale": 1.0,
    "nodes": [],
    "buckets": [],
    "owner_residuals": {},
    "warm_starts": {},
    "powers": [],
    "permuted": {},
}


def _state(rank=0, world_size=2, num_syncs=5, **fields):
    residuals = {"weight": torch.full((50, 40), float(num_syncs)), "bias": torch.randn(40)}
    facts = {"plan": Plan(codec="int8").to_dict(), "num_syncs": num_syncs, "rank": rank, "world_size": world_size}
    return seal({**EMPTY, **facts, "residuals": residuals, **fields})


def test_file_is_read_by_torch_itself_without_trusting_it(tmp_path):
    path = save_state(_state(), tmp_path)
    read = torch.load(path, weights_only=True)
    assert torch.equal(read["residuals"]["weight"], torch.full((50, 40), 5.0))


@pytest.mark.parametrize("damage", ["half", "empty", "short", "flipped"])
def test_c40_damaged_file_is_refused_by_name(damage, tmp_path):
    for rank in range(2):
        save_state(_state(rank), tmp_path)
    path = tmp_path / "gradwire-model-rank1of2.pt"
    content = path.read_bytes()
    load_state(tmp_path, rank=1, world_size=2)
    spoiled = []
    if damage == "flipped":
        for place in [*range(0, len(content), 97), len(content) - 1]:
            flipped = bytearray(content)
            flipped[place] ^= 0x10
            spoiled.append(bytes(flipped))
    else:
        spoiled.append(content[: {"half": len(content) // 2, "empty": 0, "short": len(content) - 1}[damage]])
    for bad in spoiled:
        path.write_bytes(bad)
        with pytest.raises(StateError, match=rf"{re.escape(str(path))} is (not whole|damaged)"):
            load_state(tmp_path, rank=1, world_size=2)
        # The same damage is found where all files are read.
        with pytest.raises(StateError, match=r"rank1of2\.pt"):
            load_state(tmp_path, rank=0, world_size=3)
    path.write_bytes(content)
    assert load_state(tmp_path, rank=1, world_size=2)["rank"] == 1


def test_c40_files_of_two_steps_are_refused_when_all_are_read(tmp_path):
    save_state(_state(0, num_syncs=5), tmp_path)
    save_state(_state(1, num_syncs=6), tmp_path)
    with pytest.raises(StateError, match=r"rank 0 and that of rank 1 do not belong together: step 5 and 6"):
        load_state(tmp_path, rank=0, world_size=1)


def test_missing_file_is_named_and_no_file_is_a_warning(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert load_state(tmp_path / "nowhere", rank=0, world_size=2) is None
    assert "the residual starts at zero" in caplog.text
    save_state(_state(0), tmp_path)
    with pytest.raises(StateError, match=r"state gradwire-model-rank1of2 is missing in"):
        load_state(tmp_path, rank=0, world_size=2)


def test_files_of_two_numbers_of_ranks_are_not_guessed_between(tmp_path):
    path = save_state(_state(0, 1), tmp_path)
    content = path.read_bytes()
    for rank in range(2):
        save_state(_state(rank, 2), tmp_path)
    assert not path.exists()
    path.write_bytes(content)
    with pytest.raises(StateError, match=r"holds states of 1 and of 2 ranks"):
        load_state(tmp_path, rank=0, world_size=2)


def test_models_have_files_of_their_own_whatever_they_are_called(tmp_path):
    for model in ("model", "../../etc/passwd", "a/b", "a.b"):
        path = save_state(_state(0, 1, model=model), tmp_path)
        assert path.parent == tmp_path
        assert load_state(tmp_path, rank=0, world_size=1, model=model)["model"] == model
    assert len(list(tmp_path.iterdir())) == 4


def test_redistribution_wants_every_rank(tmp_path):
    with pytest.raises(StateError, match="rank 1 of 2 are missing"):
        redistribute([_state(0)], 0, 1)


def test_changed_state_is_not_saved(tmp_path):
    state = _state()
    state["num_syncs"] = 6
    with pytest.raises(StateError, match="does not match its checksum"):
        save_state(state, tmp_path)


_SAVING = """
import json, sys, torch
from gradwire_compression import Plan, save_state, seal
step = 0
while True:
    step += 1
    state = {"plan": Plan(codec="int8").to_dict(), "num_syncs": step, "rank": 0, "world_size": 1}
    state["residuals"] = {"weight": torch.full((1000, 500), float(step))}
    save_state(seal({**json.loads(sys.argv[2]), **state}), sys.argv[1])
    if step == 1:
        print("saved", flush=True)
"""


def test_c40_killed_while_saving_leaves_the_state_before_or_the_new_one(tmp_path):
    chance, last = random.Random(4), 0
    command = [sys.executable, "-c", _SAVING, str(tmp_path), json.dumps(EMPTY)]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"saved\n"
            # Any moment of the loop will do.
            time.sleep(chance.random() * 0.05)
            process.kill()
        state = load_state(tmp_path, rank=0, world_size=1)
        assert state is not None
        assert bool((state["residuals"]["weight"] == float(state["num_syncs"])).all())
        last = max(last, state["num_syncs"])
    assert last > 1
    assert {path.suffix for path in Path(tmp_path).iterdir()} <= {".pt", ".unfinished"}
