"""Who changed what, and the history."""

import msgspec
from gradwire_protocol.records import Refusal
from sqlalchemy import Connection, RowMapping, select

from gradwire_server.database.tables import directives, events
from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import DirectiveView, EventView

NUM_CHANGES = 50
NUM_EVENTS = 20


def changes(connection: Connection, source: RunSource) -> tuple[DirectiveView, ...]:
    """Return the newest changes of the model, newest first: directives, and switches that came from elsewhere."""
    statement = (
        select(directives)
        .where(directives.c.run == source.id, directives.c.model == source.name)
        .order_by(directives.c.revision.desc())
        .limit(NUM_CHANGES)
    )
    found = [_asked(row, source) for row in connection.execute(statement).mappings()]
    switched = (
        select(events)
        .where(events.c.run == source.id, events.c.model == source.name, events.c.kind == "switched")
        .order_by(events.c.number.desc())
        .limit(NUM_CHANGES)
    )
    rows = connection.execute(switched).mappings()
    found += [_switched(row) for row in rows if row["data"].get("cause") in ("local", "guard")]
    found.sort(key=lambda change: change.requested_at, reverse=True)
    return tuple(found[:NUM_CHANGES])


def _asked(row: RowMapping, source: RunSource) -> DirectiveView:
    answered = row["answered_at"]
    return DirectiveView(
        revision=row["revision"],
        kind=row["kind"],
        codec=row["plan"]["codec"],
        author=row["author"],
        reason=row["reason"],
        state=row["state"],
        requested_at=row["requested_at"],
        answered_at=answered,
        seconds=None if answered is None else answered - row["requested_at"],
        step=row["applied_step"],
        num_ranks_confirmed=row["num_ranks_confirmed"],
        num_ranks=source.attempt["world_size"],
        refusals=msgspec.convert(row["refusals"] or [], tuple[Refusal, ...]),
    )


def _switched(row: RowMapping) -> DirectiveView:
    data = row["data"]
    return DirectiveView(
        revision=data.get("revision") or 0,
        kind="rollback" if data.get("is_rollback") else "set",
        codec=data.get("codec", ""),
        author="",
        reason=data.get("reason", ""),
        state="applied",
        requested_at=row["at"],
        answered_at=row["at"],
        step=row["step"],
        num_ranks_confirmed=data.get("num_ranks", 0),
        num_ranks=data.get("num_ranks", 0),
        cause=data["cause"],
    )


def event_views(
    connection: Connection, run: str, *, limit: int = NUM_EVENTS, before: int | None = None
) -> tuple[EventView, ...]:
    """Return lines of the history, newest first.

    Args:
        connection: A reading connection.
        run: Id of the run.
        limit: Most lines to return.
        before: Only lines with a smaller number; None for the newest.
    """
    statement = select(events).where(events.c.run == run).order_by(events.c.number.desc()).limit(limit)
    if before is not None:
        statement = statement.where(events.c.number < before)
    return tuple(_event(row) for row in connection.execute(statement).mappings())


def _event(row: RowMapping) -> EventView:
    return EventView(
        number=row["number"],
        at=row["at"],
        step=row["step"],
        kind=row["kind"],
        level=row["level"],
        message=row["message"],
        rank=row["rank"],
        data=row["data"],
    )
