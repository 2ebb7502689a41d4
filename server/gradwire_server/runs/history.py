"""A run's history: events, numbered per run without gaps in the order of their commits."""

from collections.abc import Mapping
from typing import Any

from gradwire_protocol.records import Scalar
from sqlalchemy import Connection, Row, insert, select, update

from gradwire_server.database.tables import events, runs
from gradwire_server.runs.views import EventView


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


def read_events(connection: Connection, run: str, *, after: int, limit: int) -> list[EventView]:
    """Return at most `limit` lines of a run's history with numbers above `after`, oldest first."""
    query = (
        select(events).where(events.c.run == run, events.c.number > after).order_by(events.c.number).limit(limit)
    )
    return [event_view(row) for row in connection.execute(query)]


def event_view(row: Row[Any]) -> EventView:
    """Return a stored event as it is shown."""
    return EventView(
        number=row.number,
        at=row.at,
        step=row.step,
        kind=row.kind,
        level=row.level,
        message=row.message,
        rank=row.rank,
        data=row.data,
    )


def differing_parameter(connection: Connection, run: str, attempt: str, model: str) -> str:
    """Return the first parameter of which the ranks hold different values by the newest word, empty if none.

    Cost: reads the run's events from the newest on until one speaks of it.
    """
    query = (
        select(events.c.kind, events.c.data)
        .where(
            events.c.run == run,
            events.c.attempt == attempt,
            events.c.model == model,
            events.c.kind.in_(("replicas_differ", "replicas_agree")),
        )
        .order_by(events.c.number.desc())
        .limit(1)
    )
    row = connection.execute(query).first()
    return str(row.data.get("parameter", "")) if row is not None and row.kind == "replicas_differ" else ""
