"""POST of batches: bare ASGI in front of FastAPI, whose routing and validation cost as much as storing."""

import logging

from gradwire_protocol import limits, routes
from gradwire_protocol.coding import decode_batch
from gradwire_protocol.messages import Batch, BatchAnswer
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gradwire_server.access.actors import require_ingest
from gradwire_server.answers import ClientGoneError, error_answer, error_detail, json_answer, read_body
from gradwire_server.ingest.store import Stored, store_batch
from gradwire_server.services import Services

logger = logging.getLogger(__name__)


class IngestRoute:
    """Answers POST of `routes.BATCHES` itself and hands everything else on."""

    def __init__(self, app: ASGIApp, services: Services) -> None:
        self._app = app
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection as ASGI has it."""
        if scope["type"] != "http" or scope["path"] != routes.BATCHES or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            answer = await self._answer(scope, receive)
        except ClientGoneError:
            return
        except Exception as error:
            # The top of this route, as FastAPI's handlers are of the others: an unforeseen error is logged, and the
            # agent keeps its batch.
            status, detail = error_detail(error)
            if status == 500:
                logger.exception("a batch could not be stored")
            answer = error_answer(status, detail)
        await answer(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive) -> Response:
        await require_ingest(Request(scope), self._services)
        batch = decode_batch(await read_body(scope, receive))
        return json_answer(await ingest(batch, self._services))


async def ingest(batch: Batch, services: Services) -> BatchAnswer:
    """Store a batch, then wake who waits for it.

    Raises:
        GapError, MalformedError, UnavailableError: As `store_batch` and `Database.write`.
    """
    now = services.now()
    stored: Stored = await services.database.write(lambda connection: store_batch(connection, batch, now=now))
    if stored.is_new:
        services.counters.add(batch)
        services.hub.publish(batch.run, *stored.topics)
    is_watched = stored.has_open_directive or services.hub.num_watchers(batch.run) > 0
    interval = limits.WATCHED_INTERVAL_SECONDS if is_watched else limits.IDLE_INTERVAL_SECONDS
    return BatchAnswer(number=stored.number, interval_seconds=interval)
