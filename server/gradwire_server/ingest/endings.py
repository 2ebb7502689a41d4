"""How an attempt ends: by the word of rank 0's node, of all nodes, or of any node that failed."""

from collections.abc import Sequence
from typing import Any

from gradwire_protocol.messages import Batch
from gradwire_protocol.records import AttemptEnded
from sqlalchemy import Connection, Row, select, update

from gradwire_server.database.tables import attempts, nodes, runs
from gradwire_server.directives.open import expire_directives
from gradwire_server.ingest.streams import is_current
from gradwire_server.runs.history import append_event

# The worst of what the nodes say is what is shown.
SEVERITY = {"finished": 0, "interrupted": 1, "failed": 2}
_ENDED = {"finished": "finished", "failed": "failed", "interrupted": "was interrupted"}


def end_stream(connection: Connection, batch: Batch, record: AttemptEnded, now: float) -> None:
    """Note that a node's stream ended; that may end the attempt, and the run with it."""
    connection.execute(
        update(nodes)
        .where(nodes.c.attempt == batch.attempt, nodes.c.model == batch.model, nodes.c.node == batch.node)
        .values(ended_status=record.status)
    )
    attempt = connection.execute(select(attempts).where(attempts.c.id == batch.attempt).with_for_update()).one()
    streams = connection.execute(select(nodes).where(nodes.c.attempt == batch.attempt)).all()
    if not _is_over(streams, attempt.world_size):
        return
    status = max((stream.ended_status for stream in streams if stream.ended_status), key=SEVERITY.__getitem__)
    if attempt.status is not None and SEVERITY[status] <= SEVERITY[attempt.status]:
        return
    _end_attempt(connection, batch, record, status, now)


def _is_over(streams: Sequence[Row[Any]], world_size: int) -> bool:
    """Return whether a node failed or, for every model, rank 0's node has ended or nodes with all ranks have.

    Ranks cannot go on without one that failed, and are mostly killed before they can say so.
    """
    if any(stream.ended_status == "failed" for stream in streams):
        return True
    for model in {stream.model for stream in streams}:
        ended_streams = [stream for stream in streams if stream.model == model and stream.ended_status]
        ended = {rank for stream in ended_streams for rank in stream.ranks}
        if 0 not in ended and len(ended) < world_size:
            return False
    return True


def _end_attempt(connection: Connection, batch: Batch, record: AttemptEnded, status: str, now: float) -> None:
    why = f": {record.exception}" if record.exception else ""
    connection.execute(update(attempts).where(attempts.c.id == batch.attempt).values(status=status, ended_at=now))
    append_event(
        connection,
        batch.run,
        at=now,
        agent_at=record.at,
        attempt=batch.attempt,
        model=batch.model,
        step=record.last_step,
        kind="attempt_ended",
        level="error" if status == "failed" else "info",
        message=f"Training {_ENDED[status]} at step {record.last_step}{why}.",
        data={"status": status, "exception": record.exception},
    )
    expire_directives(connection, batch.run, batch.attempt, why=f"the training {_ENDED[status]}", now=now)
    if is_current(connection, batch):
        values = {"final_status": status, "status_detail": record.exception}
        connection.execute(update(runs).where(runs.c.id == batch.run).values(values))
