"""Waiting for slow ranks, and the rank that the others wait for, from what each waited in the newest windows."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any

from sqlalchemy import Connection, select

from gradwire_server.database.tables import step_windows
from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import Measure, StragglerView, WaitingView
from gradwire_server.series.sums import StepSums
from gradwire_server.verdict import reasons
from gradwire_server.verdict.measures import known_training, measure

# Less than this share of a step is not worth a name.
LEAST_SHARE = 0.05
# A straggler waits far less than the others do for it; where everybody waits a little for everybody, nobody is one.
MOST_OF_OTHERS = 0.25
# "Now" is this many windows of every node, a second each where nobody compresses time.
WINDOWS_PER_NODE = 30
# Rows to read for it at most, however many nodes there are.
MAX_ROWS = 2000


def waiting(
    connection: Connection, source: RunSource, newest: Sequence[StepSums], unknown_reason: str
) -> WaitingView:
    """Return exposed waiting as a share of training time, where the split is known, and who is waited for.

    Args:
        connection: A reading connection.
        source: The run.
        newest: The newest steps.
        unknown_reason: Why the split of some steps is unknown.
    """
    if not newest:
        return WaitingView(share=Measure(reason=reasons.NO_STEPS))
    reason = unknown_reason or reasons.NO_STEPS
    share = measure(newest, lambda block: block.straggler_wait, known_training, most=1.0, reason=reason)
    return WaitingView(share=share, straggler=straggler(connection, source, newest[0].first_step))


def straggler(connection: Connection, source: RunSource, first_step: int) -> StragglerView | None:
    """Return the rank that keeps the others waiting, or None where no single one does.

    Args:
        connection: A reading connection.
        source: The run.
        first_step: The first of the newest steps.

    Cost: one query of at most `MAX_ROWS` rows.
    """
    waits: dict[int, float] = defaultdict(float)
    steps: dict[int, float] = defaultdict(float)
    for ranks in _rank_sums(connection, source, first_step):
        for one in ranks or ():
            if one.get("straggler_wait_seconds") is not None:
                waits[one["rank"]] += one["straggler_wait_seconds"]
                steps[one["rank"]] += one["step_seconds"]
    shares = {rank: waits[rank] / seconds for rank, seconds in steps.items() if seconds > 0}
    if len(shares) < 2 or len(shares) < source.attempt["world_size"]:
        return None
    slowest = min(shares, key=lambda rank: (shares[rank], rank))
    others = median(share for rank, share in shares.items() if rank != slowest)
    if others < LEAST_SHARE or shares[slowest] > MOST_OF_OTHERS * others:
        return None
    return StragglerView(rank=slowest, host=_host(source, slowest), others_wait_share=min(1.0, others))


def _rank_sums(connection: Connection, source: RunSource, first_step: int) -> list[list[dict[str, Any]] | None]:
    statement = (
        select(step_windows.c.ranks)
        .where(
            step_windows.c.run == source.id,
            step_windows.c.model == source.name,
            step_windows.c.attempt == source.attempt_id,
            step_windows.c.level == 0,
            step_windows.c.first_step >= first_step,
            step_windows.c.is_settling.is_(False),
        )
        .order_by(step_windows.c.first_step.desc())
        .limit(min(MAX_ROWS, WINDOWS_PER_NODE * max(1, len(source.nodes))))
    )
    return list(connection.execute(statement).scalars())


def _host(source: RunSource, rank: int) -> str:
    return next((str(node["host"]) for node in source.nodes if rank in node["ranks"]), "")
