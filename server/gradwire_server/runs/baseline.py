"""The choice of the run that quality is compared with."""

from gradwire_protocol.messages import BaselineRequest
from sqlalchemy import Connection, select, update

from gradwire_server.access.audit import write_audit
from gradwire_server.database.tables import runs
from gradwire_server.errors import InvalidError, NotFoundError
from gradwire_server.runs.history import append_event


def choose_baseline(connection: Connection, run: str, request: BaselineRequest, *, author: str, now: float) -> bool:
    """Store the choice with its audit row and a line in the history; return whether it changed anything.

    Raises:
        NotFoundError: The run does not exist.
        InvalidError: The baseline is the run itself, or does not exist.
    """
    query = select(runs.c.baseline_run).where(runs.c.id == run).with_for_update()
    present = connection.execute(query).one_or_none()
    if present is None:
        raise NotFoundError(f"run {run[:60]!r} does not exist", field="run")
    chosen = request.baseline
    if chosen == present.baseline_run:
        return False
    name = None if chosen is None else _name(connection, run, chosen)
    connection.execute(update(runs).where(runs.c.id == run).values(baseline_run=chosen))
    append_event(
        connection,
        run,
        at=now,
        kind="baseline",
        message=f"{author} took the baseline back." if name is None else f"{author} chose {name} as the baseline.",
        data={"author": author, "baseline": chosen, "name": name},
    )
    before, after = {"baseline": present.baseline_run}, {"baseline": chosen}
    write_audit(connection, at=now, actor=author, action="baseline", run=run, before=before, after=after)
    return True


def _name(connection: Connection, run: str, chosen: str) -> str:
    if chosen == run:
        raise InvalidError("a run cannot be its own baseline", field="baseline")
    name = connection.execute(select(runs.c.name).where(runs.c.id == chosen)).scalar_one_or_none()
    if name is None:
        raise InvalidError(f"run {chosen[:60]!r} does not exist", field="baseline")
    return str(name)
