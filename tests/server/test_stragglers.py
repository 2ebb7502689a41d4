"""Who is named as the rank that the others wait for."""

import pytest
from gradwire_protocol.records import NodeFacts, RankSums, StepWindow
from gradwire_server.runs.views import StragglerView
from msgspec.structs import replace
from sqlalchemy import Connection
from stored_run import StoredRun, steps, view


def window(first: int, *waits: float | None, first_rank: int = 0) -> StepWindow:
    """Ten steps of 0.1 s on every rank, of which each rank waited so many seconds in all."""
    ranks = tuple(
        RankSums(rank=first_rank + index, step_seconds=1.0, straggler_wait_seconds=wait)
        for index, wait in enumerate(waits)
    )
    return replace(steps(first, transfer=0.01, wait=0.01, ranks=len(waits)), ranks=ranks)


def straggler(connection: Connection, run: StoredRun) -> StragglerView | None:
    return view(connection, run).waiting.straggler


def run_of(connection: Connection, world_size: int, host: str = "node-00") -> StoredRun:
    node = NodeFacts(host=host, ranks=tuple(range(world_size)))
    return StoredRun(connection, world_size=world_size, node=node)


def test_the_rank_that_all_others_wait_for_is_named_with_its_host(connection: Connection) -> None:
    run = run_of(connection, 4, "gpu-07")
    for first in (0, 10, 20):
        run.send(window(first, 0.3, 0.31, 0.01, 0.29))
    found = straggler(connection, run)
    assert found is not None
    assert (found.rank, found.host) == (2, "gpu-07")
    assert found.others_wait_share == pytest.approx(0.3)


@pytest.mark.parametrize(
    "waits",
    [
        (0.04, 0.03, 0.0, 0.04),  # too little to speak of
        (0.2, 0.1, 0.1, 0.2),  # everybody waits for everybody
        (0.3, 0.3, 0.01, None),  # one rank does not know
    ],
)
def test_nobody_is_named_where_no_single_rank_is_to_blame(
    connection: Connection, waits: tuple[float | None, ...]
) -> None:
    run = run_of(connection, 4)
    run.send(window(0, *waits))
    assert straggler(connection, run) is None


def test_older_windows_do_not_blame_who_has_recovered(connection: Connection) -> None:
    run = run_of(connection, 2)
    run.send(window(0, 0.5, 0.0))
    assert straggler(connection, run) is not None
    for first in range(10, 1000, 10):
        run.send(window(first, 0.01, 0.01))
    assert straggler(connection, run) is None


def test_a_run_without_steps_has_no_straggler(connection: Connection) -> None:
    run = run_of(connection, 2)
    run.send()
    assert straggler(connection, run) is None
