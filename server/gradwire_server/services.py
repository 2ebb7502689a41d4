"""What every part of the running service may use, handed down explicitly."""

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request

from gradwire_server.access.tokens import TokenCache
from gradwire_server.config import Settings
from gradwire_server.database.engine import Database
from gradwire_server.live.hub import Hub
from gradwire_server.metrics.counters import Counters


@dataclass(frozen=True, kw_only=True)
class Services:
    """The parts of one server process; on `app.state.services`."""

    settings: Settings
    database: Database
    hub: Hub
    tokens: TokenCache
    counters: Counters
    # Unix seconds; tests hand in a clock of their own.
    now: Callable[[], float]
    # When this process began to listen: a server's own downtime is nobody's silence.
    started_at: float


def services_of(request: Request) -> Services:
    """Return the services of the request's application."""
    services: Services = request.app.state.services
    return services
