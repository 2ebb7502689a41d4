"""Above 64 ranks the pulse goes through first ranks of nodes: here 8 ranks as 4 nodes, with a lower limit."""

import os
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import run_ranks
from distributed.test_replicas import listen, nudge
from distributed.test_steering import directive
from distributed.training import attach, batch, changes, flat, make_model, pulse_with_every_exchange, train_step
from gradwire.groups import open_side
from gradwire.steering import side
from gradwire.steering.side import MAX, MIN, SUM, NodeSide

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]

NODES = ((0, 1), (2, 3), (4, 5), (6, 7))


def _as_nodes(rank: int) -> None:
    """Let this rank be one of two of a node, and speak with others through first ranks."""
    os.environ.update({"GROUP_RANK": str(rank // 2), "LOCAL_WORLD_SIZE": "2"})
    side.MAX_DIRECT_RANKS = 4


def _operations(rank: int, world_size: int, nodes: tuple[tuple[int, ...], ...]) -> tuple[Any, ...]:
    side.MAX_DIRECT_RANKS = 2
    made = open_side(dist.group.WORLD, nodes)
    assert isinstance(made, NodeSide)
    pulse = torch.tensor([float(rank), -float(rank), torch.inf], dtype=torch.float64)
    made.start_min(pulse).wait()
    largest = torch.tensor([rank])
    made.all_reduce(largest, MAX)
    least = torch.tensor([rank + 5])
    made.all_reduce(least, MIN)
    total = torch.tensor([float(rank)], dtype=torch.float64)
    made.all_reduce(total, SUM)
    told = torch.full((3,), rank + 7, dtype=torch.uint8)
    made.broadcast(told)
    gathered = [row.tolist() for row in made.gather(torch.tensor([rank, 10 * rank]))]
    # Groups that are opened afterwards need names that all ranks agree on.
    later = dist.new_group(ranks=list(range(world_size)), use_local_synchronization=True)
    alive = torch.ones(1)
    dist.all_reduce(alive, group=later)
    return pulse.tolist(), largest.item(), least.item(), total.item(), told.tolist(), gathered, alive.item()


@pytest.mark.parametrize("nodes", [NODES, ((0, 3, 5), (1, 2), (4,), (6, 7)), ((0,), tuple(range(1, 8)))])
def test_collectives_through_first_ranks_are_those_of_all_ranks(nodes):
    expected = ([0.0, -7.0, torch.inf], 7, 5, 28.0, [7, 7, 7], [[rank, 10 * rank] for rank in range(8)], 8.0)
    assert run_ranks(8, _operations, nodes) == [expected] * 8


def _steered(rank: int, world_size: int, folder: str) -> tuple[Any, ...]:
    """Switch, be refused by rank 5, switch, differ on rank 6, roll back from rank 3; told step by step."""
    pulse_with_every_exchange()
    _as_nodes(rank)
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    steering = session._steering
    assert isinstance(steering._pulse._side, NodeSide)
    events = listen(session)
    results: list[Any] = []
    steering._on_result = lambda result, is_reporter: results.append((type(result).__name__, result, is_reporter))
    prepare = steering.exchange.prepare

    def prepare_or_fail(plan: Any) -> Any:
        if rank == 5 and plan.codec == "onebit":
            raise MemoryError("12 GB wanted, 1 GB free")
        return prepare(plan)

    steering.exchange.prepare = prepare_or_fail
    history = []
    for step in range(1, 61):
        if rank == 0 and step in (5, 10, 15):
            codec = {5: "int8", 10: "onebit", 15: "bf16"}[step]
            steering.offer(directive(step, codec, every_bucket=True))
        if rank == 6 and step == 22:
            nudge(ddp.module.get_parameter("3.weight"))
        if rank == 3 and step == 45:
            session.rollback("asked for on another node")
        session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
        history.append((step, session.codec))
    session.close()
    for step in range(3):
        train_step(ddp, optimizer, batch(rank, step))
    told = [(name, result.step, is_reporter) for name, result, is_reporter in results]
    refusals = [[(r.rank, r.reason) for r in result.refusals] for name, result, _ in results if name == "Refused"]
    return changes(history), told, refusals, [event for _, event in events], steering.is_steered


def test_eight_ranks_of_four_nodes_are_steered_together(tmp_path):
    results = run_ranks(8, _steered, str(tmp_path), timeout=120)
    histories = [history for history, *_ in results]
    assert histories == [histories[0]] * 8
    assert [codec for _, codec in histories[0]] == ["none", "int8", "bf16", "none"]
    for rank, (_, told, refusals, _, is_steered) in enumerate(results):
        assert [name for name, *_ in told] == ["Switched", "Refused", "Switched", "Switched"]
        assert [step for _, step, _ in told] == [step for _, step, _ in results[0][1]]
        assert [who for *_, who in told] == [rank == 0] * 3 + [rank == 3]
        assert refusals == [[(5, "12 GB wanted, 1 GB free")]]
        assert not is_steered, "the pulse ended on all ranks together"
    (event,) = results[0][3]
    assert (event.kind, event.data["ranks"], event.data["parameter"]) == ("replicas_differ", "6", "3.weight")


def _toggled(rank: int, world_size: int, folder: str, num_toggles: int) -> tuple[Any, ...]:
    pulse_with_every_exchange()
    _as_nodes(rank)
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    steering = session._steering

    def toggle() -> None:
        for revision in range(1, num_toggles + 1):
            codec = ("int8", "none", "onebit", "bf16")[revision % 4]
            steering.offer(directive(revision, codec, every_bucket=True))
            while steering.epoch < revision:
                time.sleep(0.001)

    if rank == 0:
        threading.Thread(target=toggle, daemon=True).start()
    history: list[tuple[int, str]] = []
    while steering.epoch < num_toggles:
        loss = train_step(ddp, optimizer, batch(rank, session.current_step))
        history.append((session.current_step, session.codec))
        session.step(loss=loss)
    session.close()
    return changes(history), flat(ddp)


def test_toggles_reach_ranks_of_all_nodes_at_the_same_step(tmp_path):
    results = run_ranks(8, _toggled, str(tmp_path), 30, timeout=120)
    for history, weights in results:
        assert history == results[0][0]
        assert torch.equal(weights, results[0][1])


def _dies(rank: int, world_size: int, folder: str) -> str:
    """Rank 7, which is first of no node, is gone in the middle of training."""
    pulse_with_every_exchange()
    _as_nodes(rank)
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder)
    try:
        for step in range(1, 50):
            if rank == 7 and step == 10:
                os._exit(0)
            session.step(loss=train_step(ddp, optimizer, batch(rank, step)))
    except RuntimeError as error:
        with open(f"{folder}/{rank}", "w") as file:
            file.write(str(error))
    os._exit(0)


def test_rank_that_dies_ends_its_peers_by_gloos_own_error(tmp_path):
    with pytest.raises(AssertionError, match="died without a word"):
        run_ranks(8, _dies, str(tmp_path), timeout=60)
    told = {path.name: path.read_text() for path in tmp_path.iterdir() if path.name.isdigit()}
    assert set(told) == set("0123456"), "no peer hangs"
    assert all("gloo" in text for text in told.values()), told
