"""Is the process alive, and can it do its work?"""

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import Response
from gradwire_protocol import routes
from sqlalchemy import Connection, text

from gradwire_server.answers import json_answer
from gradwire_server.database.schema import head_revision, stored_revision
from gradwire_server.errors import UnavailableError
from gradwire_server.services import services_of

router = APIRouter(tags=["machines"])

# Seconds after which a write counts as failed; load balancers ask with time-outs of their own, often five.
READY_SECONDS = 2.0


@router.get(routes.LIVEZ)
async def livez() -> Response:
    """Say that the process serves requests; nothing else is looked at."""
    return json_answer({"status": "alive"})


@router.get(routes.READYZ)
async def readyz(request: Request) -> Response:
    """Say whether the database takes a write and has this program's schema; 503 otherwise."""
    try:
        async with asyncio.timeout(READY_SECONDS):
            revision = await services_of(request).database.write(_write_revision)
    except TimeoutError as error:
        raise UnavailableError(f"the database took no write within {READY_SECONDS:g} s") from error
    if revision != head_revision():
        raise UnavailableError(f"the database has revision {revision}; wanted: {head_revision()}")
    return json_answer({"status": "ready", "revision": revision})


def _write_revision(connection: Connection) -> str | None:
    # Writes what is there already: a full disk or a read-only file shows only when something is written.
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))
    return stored_revision(connection)
