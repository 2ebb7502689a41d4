"""A run's history: events, numbered per run without gaps in the order of their commits."""

from collections.abc import Mapping

from gradwire_protocol.records import Scalar
from sqlalchemy import Connection, insert, select, update

from gradwire_server.database.tables import events, runs


def append_event(
    connection: Connection,
    run: str,
    *,
    at: float,
    kind: str,
    message: str,
    level: str = "info",
    attempt: str | None = None,
    model: str | None = None,
    step: int | None = None,
    rank: int | None = None,
    agent_at: float | None = None,
    data: Mapping[str, Scalar] | None = None,
) -> int:
    """Add a line to the run's history and return its number.

    The number is taken under the lock of the run's row, which is held to the end of the transaction: a reader that
    has seen a number never meets a smaller one later.

    Args:
        connection: Of the writer.
        run: An existing run.
        at: Server's clock, Unix seconds.
        kind: As the events table lists them; pages put it into words.
        message: English, for logs and the API.
        level: "info", "warning" or "error".
        attempt: Where it happened.
        model: The attached model, by name.
        step: When, in training's own count.
        rank: Who, if one rank did.
        agent_at: The agent's clock, Unix seconds.
        data: What pages need to put `kind` into words.
    """
    connection.execute(update(runs).where(runs.c.id == run).values(last_event=runs.c.last_event + 1))
    number = int(connection.execute(select(runs.c.last_event).where(runs.c.id == run)).scalar_one())
    row = {
        "run": run,
        "number": number,
        "at": at,
        "agent_at": agent_at,
        "attempt": attempt,
        "model": model,
        "step": step,
        "rank": rank,
        "kind": kind,
        "level": level,
        "message": message,
        "data": dict(data or {}),
    }
    connection.execute(insert(events).values(row))
    return number
