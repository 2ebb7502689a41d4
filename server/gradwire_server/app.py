"""The application: services, routes, handlers and what stands in front of them."""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from gradwire_protocol.errors import ProtocolError
from gradwire_protocol.messages import ErrorDetail
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from gradwire_server import health, schema
from gradwire_server.access import routes as access_routes
from gradwire_server.access.headers import HEADERS, GuardHeaders
from gradwire_server.access.tokens import TokenCache
from gradwire_server.answers import error_answer, error_detail
from gradwire_server.config import Settings
from gradwire_server.database.engine import Database
from gradwire_server.database.schema import migrate
from gradwire_server.directives import routes as directive_routes
from gradwire_server.errors import ServiceError
from gradwire_server.figures import routes as figure_routes
from gradwire_server.ingest.routes import IngestRoute
from gradwire_server.live import routes as live_routes
from gradwire_server.live.hub import Hub
from gradwire_server.metrics import routes as metrics_routes
from gradwire_server.metrics.counters import Counters
from gradwire_server.pages import actions as page_actions
from gradwire_server.pages import login as login_page
from gradwire_server.pages import routes as page_routes
from gradwire_server.pages.assets import STATIC, Assets, static_folder
from gradwire_server.pages.errors import error_page, wants_page
from gradwire_server.runs import routes as run_routes
from gradwire_server.series import routes as series_routes
from gradwire_server.services import Services

logger = logging.getLogger(__name__)

ROUTERS = (
    health.router,
    schema.router,
    access_routes.router,
    directive_routes.router,
    live_routes.router,
    run_routes.router,
    series_routes.router,
    figure_routes.router,
    metrics_routes.router,
    login_page.router,
    page_routes.router,
    page_actions.router,
)


def create_app(settings: Settings, *, now: Callable[[], float] = time.time) -> FastAPI:
    """Return the application of one server process; its database is brought up to date first.

    Args:
        settings: Checked settings.
        now: The clock, Unix seconds.

    Raises:
        ConfigError: The settings cannot be served.
        SchemaError: The database was written by a newer program.
    """
    settings.check()
    settings.data.mkdir(mode=0o700, parents=True, exist_ok=True)
    migrate(settings.effective_database_url)
    database = Database(settings.effective_database_url)
    counters = Counters(now)
    with database.read() as connection:
        counters.load(connection)
    services = Services(
        settings=settings,
        database=database,
        hub=Hub(),
        tokens=TokenCache(),
        counters=counters,
        now=now,
        started_at=now(),
    )
    app = FastAPI(title="Gradwire", version="1", docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.services = services
    for router in ROUTERS:
        app.include_router(router)
    app.mount(STATIC, Assets(directory=static_folder()))
    app.openapi = lambda: schema.openapi(app)  # type: ignore[method-assign]
    _handle_errors(app)
    # The last one added is the first to see a request.
    app.add_middleware(IngestRoute, services=services)
    app.add_middleware(GuardHeaders)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    services.hub.open()
    yield
    services.hub.close()
    services.database.close()


def _handle_errors(app: FastAPI) -> None:
    for kind in (ServiceError, ProtocolError, OperationalError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    app.add_exception_handler(Exception, _answer_unforeseen)
    app.add_exception_handler(RequestValidationError, _answer_validation)


async def _answer_error(request: Request, error: Exception) -> Response:
    """Answer in the one shape; as a page where a person's browser asked."""
    status, detail = error_detail(error)
    if wants_page(request):
        return await error_page(request, status, detail)
    return error_answer(status, detail, getattr(error, "headers", None))


async def _answer_unforeseen(request: Request, error: Exception) -> Response:
    """Answer what no handler foresaw; Starlette calls this outside all middleware and then logs the traceback."""
    status, detail = error_detail(error)
    guards = {name.decode(): value.decode() for name, value in HEADERS}
    if not wants_page(request):
        return error_answer(status, detail, guards)
    page = await error_page(request, status, detail)
    page.headers.update(guards)
    return page


async def _answer_validation(request: Request, error: Exception) -> Response:
    """Answer what FastAPI found wrong in a path or query: the first finding, with its place."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(part) for part in first["loc"][1:])
    return error_answer(422, ErrorDetail(code="malformed", message=f"{field}: {first['msg']}", field=field))
