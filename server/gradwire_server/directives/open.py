"""Directives that wait for the training's answer, and how they end without one."""

from typing import Any

from sqlalchemy import Connection, Row, bindparam, select, update

from gradwire_server.database.tables import directives
from gradwire_server.runs.history import append_event

OPEN_STATES = ("requested", "delivered")

# Asked with every batch, so built once.
_ANY_OPEN = (
    select(directives.c.revision)
    .where(directives.c.run == bindparam("of_run"), directives.c.state.in_(OPEN_STATES))
    .limit(1)
)


def open_directives(
    connection: Connection, run: str, *, model: str | None = None, attempt: str | None = None
) -> list[Row[Any]]:
    """Return the run's open directives, oldest first; of one model or attempt where given."""
    query = select(directives).where(directives.c.run == run, directives.c.state.in_(OPEN_STATES))
    if model is not None:
        query = query.where(directives.c.model == model)
    if attempt is not None:
        query = query.where(directives.c.attempt == attempt)
    return list(connection.execute(query.order_by(directives.c.revision)).all())


def has_open_directive(connection: Connection, run: str) -> bool:
    """Return whether somebody waits for the run's training to answer."""
    return connection.execute(_ANY_OPEN, {"of_run": run}).first() is not None


def close_directive(connection: Connection, row: Row[Any], *, state: str, why: str, now: float) -> None:
    """End an open directive as superseded or expired, with a line in the history.

    Args:
        connection: Of the writer.
        row: The directive's row.
        state: "superseded" or "expired".
        why: Ends the sentence "change 3 (int8 by ann) expired: ...".
        now: Unix seconds.
    """
    values = row._mapping
    key = {name: values[name] for name in ("run", "model", "revision")}
    where = [directives.c[name] == value for name, value in key.items()]
    connection.execute(update(directives).where(*where).values(state=state, answered_at=now))
    codec = values["plan"]["codec"]
    append_event(
        connection,
        values["run"],
        at=now,
        kind=state,
        level="warning" if state == "expired" else "info",
        message=f"Change {values['revision']} ({codec} by {values['author']}) {state}: {why}.",
        attempt=values["attempt"],
        model=values["model"],
        data={"revision": values["revision"], "codec": codec, "author": values["author"], "why": why},
    )


def expire_directives(connection: Connection, run: str, attempt: str, *, why: str, now: float) -> None:
    """Expire what is open for an attempt that will not answer any more."""
    for row in open_directives(connection, run, attempt=attempt):
        close_directive(connection, row, state="expired", why=why, now=now)
