"""Who is asking: an agent by its ingest token, a person by session or operator token."""

from dataclasses import dataclass
from typing import Literal

from starlette.requests import HTTPConnection, Request

from gradwire_server.access.origin import check_host, check_origin
from gradwire_server.access.tokens import Kind, Token, find_token
from gradwire_server.errors import ForbiddenError, UnauthorizedError
from gradwire_server.services import Services, services_of

Role = Literal["operator", "reader"]

WANTED: dict[Kind, str] = {
    "ingest": "an ingest token (gradwire-server token create --kind ingest)",
    "operator": "a login or an operator token (gradwire-server token create --kind operator)",
    "read": "a login or a read token (gradwire-server token create --kind read)",
}


@dataclass(frozen=True)
class Actor:
    """Who is asking, by the name that history and audit show."""

    name: str
    role: Role


def session_cookie(services: Services) -> str:
    """Return the name of the session cookie; browsers share cookies between ports, so the port is part of it."""
    return f"gradwire_session_{services.settings.port}"


def bearer_secret(connection: HTTPConnection) -> str | None:
    """Return the secret of an Authorization header, or None when there is none.

    Raises:
        UnauthorizedError: The header is of another scheme.
    """
    header = connection.headers.get("authorization")
    if header is None:
        return None
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise UnauthorizedError("the Authorization header is not understood; wanted: Bearer TOKEN")
    return secret.strip()


async def require_ingest(connection: HTTPConnection, services: Services) -> Token:
    """Return the ingest token of an agent's request.

    Raises:
        UnauthorizedError: There is no token, or it is unknown or expired.
        ForbiddenError: The token is of another kind.
    """
    return await _require_bearer(connection, services, ("ingest",))


async def require_actor(connection: HTTPConnection, services: Services, role: Role) -> Actor:
    """Return who asks, by bearer token or by session cookie; a cookie counts only from our own pages.

    Raises:
        UnauthorizedError: Neither is there, or it is unknown or expired.
        ForbiddenError: It is of another kind, or the request comes from somewhere else's page.
    """
    kinds: tuple[Kind, ...] = ("operator",) if role == "operator" else ("operator", "read")
    if bearer_secret(connection) is not None:
        token = await _require_bearer(connection, services, kinds)
        return Actor(token.name, "reader" if token.kind == "read" else "operator")
    secret = connection.cookies.get(session_cookie(services))
    if secret is None:
        raise UnauthorizedError(f"nobody is logged in; wanted: {WANTED[kinds[-1]]}")
    check_host(connection, services.settings)
    check_origin(connection)
    session = await _find(secret, services)
    if session is None or session.kind != "session":
        raise UnauthorizedError("the login has ended; gradwire-server login-link prints a new link")
    return Actor(session.name, "operator")


async def _require_bearer(connection: HTTPConnection, services: Services, kinds: tuple[Kind, ...]) -> Token:
    secret = bearer_secret(connection)
    if secret is None:
        raise UnauthorizedError(f"no token; wanted: {WANTED[kinds[-1]]}")
    token = await _find(secret, services)
    if token is None or token.kind == "session":
        raise UnauthorizedError(f"the token is unknown or has expired; wanted: {WANTED[kinds[-1]]}")
    if token.kind not in kinds:
        raise ForbiddenError(f"this is a token of kind {token.kind}; wanted: {WANTED[kinds[-1]]}")
    return token


async def _find(secret: str, services: Services) -> Token | None:
    now = services.now()
    token = services.tokens.get(secret, now=now)
    if token is None:
        token = await services.database.query(lambda connection: find_token(connection, secret, now=now))
        if token is not None:
            services.tokens.put(token, now=now)
    return token


async def operator(request: Request) -> Actor:
    """FastAPI dependency: who asks, and may change things."""
    return await require_actor(request, services_of(request), "operator")


async def reader(request: Request) -> Actor:
    """FastAPI dependency: who asks, and may look."""
    return await require_actor(request, services_of(request), "reader")


async def ingest(request: Request) -> Token:
    """FastAPI dependency: the ingest token of an agent."""
    return await require_ingest(request, services_of(request))
