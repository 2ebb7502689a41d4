"""Directives on their way to the training: rank 0 asks with a request that waits."""

import time
from typing import Any

from gradwire_protocol.messages import Directive
from sqlalchemy import Connection, Row, select, update
from starlette.requests import Request

from gradwire_server.database.tables import directives
from gradwire_server.directives.open import OPEN_STATES
from gradwire_server.directives.requests import directive_of
from gradwire_server.directives.results import ModelRef
from gradwire_server.runs.history import append_event
from gradwire_server.services import Services


async def wait_directive(
    request: Request, services: Services, ref: ModelRef, *, after: int, wait_seconds: float
) -> Directive | None:
    """Return the newest open directive of an attempt above `after`, or None when the wait runs out.

    An attempt that nothing is stored of waits like any other: its first batch may be on its way. Nothing of the
    database is held while waiting.
    """
    deadline = time.monotonic() + wait_seconds
    # Subscribed before the first look, so that nothing slips between look and wait.
    with services.hub.subscribe(ref.run, "directive") as subscription:
        while True:
            row = await services.database.query(lambda connection: _newest_open(connection, ref, after))
            if row is not None and not await request.is_disconnected():
                return await _deliver(services, ref, after)
            seconds = deadline - time.monotonic()
            if row is not None or seconds <= 0 or subscription.is_closed:
                return None
            await subscription.wait(seconds)


async def _deliver(services: Services, ref: ModelRef, after: int) -> Directive | None:
    now = services.now()
    directive, is_first = await services.database.write(
        lambda connection: _mark_delivered(connection, ref, after, now)
    )
    if is_first:
        services.hub.publish(ref.run, "event")
    return directive


def _mark_delivered(connection: Connection, ref: ModelRef, after: int, now: float) -> tuple[Directive | None, bool]:
    row = _newest_open(connection, ref, after)
    if row is None:
        return None, False
    if row.state == "delivered":
        # Asked for again: the answer was lost, or the agent started anew within its attempt.
        return directive_of(row), False
    key = (directives.c.run == row.run, directives.c.model == row.model, directives.c.revision == row.revision)
    connection.execute(update(directives).where(*key).values(state="delivered", delivered_at=now))
    append_event(
        connection,
        ref.run,
        at=now,
        attempt=ref.attempt,
        model=ref.model,
        kind="delivered",
        message=f"Change {row.revision} reached the training.",
        data={"revision": row.revision, "codec": row.plan["codec"], "seconds": now - row.requested_at},
    )
    return directive_of(row), True


def _newest_open(connection: Connection, ref: ModelRef, after: int) -> Row[Any] | None:
    query = select(directives).where(
        directives.c.run == ref.run,
        directives.c.model == ref.model,
        directives.c.attempt == ref.attempt,
        directives.c.revision > after,
        directives.c.state.in_(OPEN_STATES),
    )
    return connection.execute(query.order_by(directives.c.revision.desc()).limit(1)).one_or_none()
