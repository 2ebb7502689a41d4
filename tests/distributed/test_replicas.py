"""Ranks that no longer hold the same parameters are found out, and the parameters named: real gloo ranks."""

from typing import Any

import pytest
import torch
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, pulse_with_every_exchange, train_step
from gradwire.steering.replicas import PULSES_BETWEEN
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

pytestmark = pytest.mark.distributed

# Read at the latest so many exchanges later, told of with the next one, and compared in the one after it.
MOST_STEPS = PULSES_BETWEEN + 2


def listen(session: Any) -> list[Any]:
    """Return a list that collects what this rank reports of replicas."""
    events: list[Any] = []
    report = session._steering._on_event

    def keep(event: Any) -> None:
        report(event)
        if event.kind.startswith("replicas"):
            events.append((session.current_step, event))

    session._steering._on_event = keep
    return events


def nudge(parameter: torch.Tensor) -> None:
    """Move one element by the smallest step there is."""
    with torch.no_grad():
        flat = parameter.view(-1)
        flat[3] = torch.nextafter(flat[3], torch.tensor(torch.inf, dtype=flat.dtype))


def _nudged(rank: int, world_size: int, folder: str, codec: str, odd_rank: int, name: str) -> list[Any]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": codec, "min_elements": 64})
    events = listen(session)
    for step in range(1, 51):
        if step == 12 and rank == odd_rank:
            nudge(ddp.module.get_parameter(name))
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return events


@pytest.mark.parametrize(
    ("world_size", "codec", "odd_rank", "ranks"),
    [(2, "none", 1, "0,1"), (2, "int8", 0, "0,1"), (3, "none", 2, "2")],
)
@pytest.mark.parametrize("name", ["3.weight", "2.weight"])
def test_one_element_of_one_parameter_by_one_ulp_is_found_and_named(
    world_size, codec, odd_rank, ranks, name, tmp_path
):
    results = run_ranks(world_size, _nudged, str(tmp_path), codec, odd_rank, name)
    ((step, event),) = results[0]
    assert 12 < step <= 12 + MOST_STEPS
    assert 12 <= event.step < step
    assert (event.data["parameter"], event.data["num_parameters"], event.data["ranks"]) == (name, 1, ranks)
    assert event.message.startswith(f"ranks differ: {name} (")
    assert event.level == "error"
    # One rank speaks for all, and once.
    assert all(events == [] for events in results[1:])


def _mended(rank: int, world_size: int, folder: str) -> list[Any]:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    events = listen(session)
    for step in range(1, 51):
        if step == 5 and rank == 1:
            nudge(ddp.module.get_parameter("0.weight"))
        if step == 30:
            torch.distributed.broadcast(ddp.module.get_parameter("0.weight").data, src=0)
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return [event.kind for _, event in events]


def test_ranks_that_agree_again_are_told_of_once(tmp_path):
    assert run_ranks(2, _mended, str(tmp_path)) == [["replicas_differ", "replicas_agree"], []]


class _Thawing(nn.Module):
    """A body that is frozen when the model is wrapped, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 16), nn.LayerNorm(16), nn.Linear(16, 16))
        self.head = nn.Linear(16, 1)
        self.body.requires_grad_(False)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.body(data))
        return result


def _thawed(rank: int, world_size: int, folder: str) -> list[Any]:
    pulse_with_every_exchange()
    torch.manual_seed(0)
    net = _Thawing()
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-2)
    session = attach(ddp, optimizer, folder, plan={"codec": "onebit", "min_elements": 0})
    events = listen(session)
    for step in range(1, 31):
        if step == 5:
            net.body.requires_grad_(True)
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return events


def test_c09_layers_thawed_after_wrapping_are_named_within_ten_steps(tmp_path):
    first, second = run_ranks(2, _thawed, str(tmp_path))
    ((step, event),) = first
    assert 5 < step <= 15
    assert event.data["parameter"] == "body.0.weight"
    assert event.data["num_parameters"] == 6
    assert event.message.startswith("ranks differ: body.0.weight, body.0.bias, body.1.weight, ")
    assert "head" not in event.message
    assert second == []


def _undisturbed(
    rank: int, world_size: int, folder: str, dtype: torch.dtype, accumulate: int, ddp_arguments: Any
) -> Any:
    pulse_with_every_exchange()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)).to(dtype)
    net[0].bias.requires_grad_(False)
    ddp = DistributedDataParallel(net, broadcast_buffers=False, **ddp_arguments)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad])
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 0})
    events = listen(session)
    for step in range(1, 4 * PULSES_BETWEEN):
        optimizer.zero_grad()
        for part in range(accumulate - 1):
            with ddp.no_sync():
                ddp(batch(rank, 1000 + step + part).to(dtype)).square().mean().backward()
        ddp(batch(rank, step).to(dtype)).square().mean().backward()
        optimizer.step()
        session.step()
    session.close()
    return events, session._steering._replicas._num_pulses


@pytest.mark.parametrize(
    ("dtype", "accumulate", "ddp_arguments"),
    [
        (torch.float32, 1, {}),
        (torch.bfloat16, 1, {}),
        (torch.float32, 3, {}),
        (torch.float32, 1, {"static_graph": True}),
        (torch.float32, 1, {"gradient_as_bucket_view": True}),
    ],
    ids=["plain", "bf16", "no_sync", "static graph", "bucket views"],
)
def test_equal_ranks_are_never_accused(dtype, accumulate, ddp_arguments, tmp_path):
    for events, num_pulses in run_ranks(2, _undisturbed, str(tmp_path), dtype, accumulate, ddp_arguments):
        assert events == []
        assert num_pulses > 2 * PULSES_BETWEEN


def _two_models(rank: int, world_size: int, folder: str) -> Any:
    pulse_with_every_exchange()
    (one, one_optimizer), (two, two_optimizer) = make_model(), make_model(width=32)
    first = attach(one, one_optimizer, folder, name="one")
    second = attach(two, two_optimizer, folder, name="two")
    events = listen(first), listen(second)
    for step in range(1, 41):
        if step == 12 and rank == 1:
            nudge(two.module.get_parameter("0.bias"))
        first.step(loss=train_step(one, one_optimizer, batch(rank, step)))
        second.step(loss=train_step(two, two_optimizer, batch(rank, step)))
    first.close()
    second.close()
    return events


def test_of_two_models_only_the_one_that_differs_is_named(tmp_path):
    first, second = run_ranks(2, _two_models, str(tmp_path))[0]
    assert first == []
    assert [event.data["parameter"] for _, event in second] == ["0.bias"]


def _ignoring(rank: int, world_size: int, folder: str) -> Any:
    pulse_with_every_exchange()
    net = nn.Sequential(nn.Linear(32, 16), nn.Linear(16, 1))
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(net, ["0.weight"])
    with torch.no_grad():
        net[0].weight.fill_(rank)
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-3)
    session = attach(ddp, optimizer, folder)
    events = listen(session)
    for step in range(1, 31):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return events, net[0].weight.detach().mean().item()


def test_what_ddp_was_told_to_ignore_may_differ(tmp_path):
    results = run_ranks(2, _ignoring, str(tmp_path))
    assert results[0][1] != results[1][1]
    assert [events for events, _ in results] == [[], []]


def _joining(rank: int, world_size: int, folder: str) -> Any:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    events = listen(session)
    with Join([ddp]):
        for step in range(1, 12 if rank else 40):
            session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    for step in range(40, 60):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return events


def test_a_rank_that_ran_out_of_data_early_is_not_accused(tmp_path):
    assert run_ranks(2, _joining, str(tmp_path)) == [[], []]


def _unreadable(rank: int, world_size: int, folder: str) -> Any:
    pulse_with_every_exchange()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    events = listen(session)
    if rank == 1:
        # A tensor without memory stands for whatever cannot be read.
        session._steering._replicas._devices[0].append(torch.empty(3, device="meta"))
    for step in range(1, 31):
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    session.close()
    return events, session.current_step


def test_a_rank_that_cannot_read_its_parameters_trains_on(tmp_path):
    assert run_ranks(2, _unreadable, str(tmp_path)) == [([], 31), ([], 31)]
