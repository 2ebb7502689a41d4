"""Live streams (server-sent events): a run's history as it grows, and word that there are new numbers.

Two kinds of messages. "event" carries a line of the history and its number as id, so a browser that comes back
names the last one it has and misses none. "changed" says that numbers arrived; the page fetches what it shows.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import Response, StreamingResponse
from gradwire_protocol import routes
from sqlalchemy import Connection, select

from gradwire_server.access.actors import Actor, reader
from gradwire_server.database.tables import runs
from gradwire_server.errors import NotFoundError
from gradwire_server.runs.history import read_events
from gradwire_server.runs.views import EventView
from gradwire_server.services import Services, services_of

router = APIRouter(tags=["live"])
Reader = Annotated[Actor, Depends(reader)]

HEARTBEAT_SECONDS = 15.0
HEARTBEAT = b": heartbeat\n\n"
# How long a browser waits before it comes back, milliseconds.
RETRY = b"retry: 2000\n\n"
PAGE_EVENTS = 500

HEADERS = {
    "Cache-Control": "no-cache, no-transform",
    # Proxies of the nginx kind would hold messages back until they have a page of them.
    "X-Accel-Buffering": "no",
}


@router.get(routes.RUN_LIVE)
async def run_live(
    request: Request, run: str, actor: Reader, last_event_id: Annotated[str | None, Header()] = None
) -> Response:
    """Stream one run: its events after Last-Event-ID (from now on without it), and "changed" for new numbers."""
    services = services_of(request)
    newest = await services.database.query(lambda connection: _newest_event(connection, run))
    is_number = last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 19
    after = min(int(last_event_id or 0), newest) if is_number else newest
    return StreamingResponse(_run_stream(services, run, after), media_type="text/event-stream", headers=HEADERS)


@router.get(routes.LIVE)
async def live(request: Request, actor: Reader) -> Response:
    """Stream word of all runs: "changed" with the run's id when its numbers or its history grew."""
    return StreamingResponse(_all_stream(services_of(request)), media_type="text/event-stream", headers=HEADERS)


async def _run_stream(services: Services, run: str, after: int) -> AsyncIterator[bytes]:
    with services.hub.subscribe(run, "data", "event") as subscription, services.hub.watch(run):
        yield RETRY
        # What happened between the browser's last sight and the subscription.
        topics = {"event"}
        while True:
            if "event" in topics:
                events = await _events_after(services, run, after)
                while events:
                    for event in events:
                        yield _message("event", event, number=event.number)
                    after = events[-1].number
                    events = await _events_after(services, run, after)
            if topics:
                yield _message("changed", {"run": run})
            if subscription.is_closed:
                return
            news = await subscription.wait(HEARTBEAT_SECONDS)
            topics = set(news.get(run, ()))
            if not topics:
                yield HEARTBEAT


async def _all_stream(services: Services) -> AsyncIterator[bytes]:
    with services.hub.subscribe(None, "data", "event") as subscription:
        yield RETRY
        # Whoever comes, or comes back, may have missed any run's news.
        yield _message("changed", {"run": None})
        while not subscription.is_closed:
            news = await subscription.wait(HEARTBEAT_SECONDS)
            for run in news:
                yield _message("changed", {"run": run})
            if not news:
                yield HEARTBEAT


async def _events_after(services: Services, run: str, after: int) -> list[EventView]:
    return await services.database.query(
        lambda connection: read_events(connection, run, after=after, limit=PAGE_EVENTS)
    )


def _message(kind: str, data: object, *, number: int | None = None) -> bytes:
    head = b"" if number is None else b"id: %d\n" % number
    return head + b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))


def _newest_event(connection: Connection, run: str) -> int:
    number = connection.execute(select(runs.c.last_event).where(runs.c.id == run)).scalar_one_or_none()
    if number is None:
        raise NotFoundError(f"run {run[:60]!r} is not known", field="run")
    return int(number)
