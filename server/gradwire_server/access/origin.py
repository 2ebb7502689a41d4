"""A cookie is sent by the browser whoever's page asks, so such requests must prove that the page is ours."""

import socket
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from gradwire_server.config import Settings, is_address
from gradwire_server.errors import ForbiddenError

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORTS = {"http": 80, "https": 443}


def check_host(connection: HTTPConnection, settings: Settings) -> None:
    """Refuse a Host that somebody else's name server could point at this machine (DNS rebinding).

    Addresses cannot be rebound; names must be this machine's own or allowed at start.

    Raises:
        ForbiddenError: The name is neither.
    """
    host = _host_and_port(f"//{connection.headers.get('host', '')}")[0]
    own = {"localhost", socket.gethostname().lower(), *(name.lower() for name in settings.allowed_hosts)}
    if not is_address(host) and host not in own:
        raise ForbiddenError(
            f"host {host[:200]!r} is unknown; if it is the server's, start it with --allowed-host {host[:200]}",
            field="host",
        )


def check_origin(connection: HTTPConnection) -> None:
    """Refuse a change whose page is not ours; browsers state the page's origin with every change.

    Raises:
        ForbiddenError: The Origin is missing on a change, or differs from the Host.
    """
    origin = connection.headers.get("origin")
    if origin is None:
        if connection.scope.get("method", "GET") in SAFE_METHODS:
            return
        raise ForbiddenError("the change states no Origin; use a page of this server, or a token", field="origin")
    # Behind a proxy the scheme may differ from ours; a missing port is the one of the origin's scheme.
    default = DEFAULT_PORTS.get(origin.partition(":")[0])
    stated_host, stated_port = _host_and_port(origin)
    host, port = _host_and_port(f"//{connection.headers.get('host', '')}")
    if not host or stated_host != host or (stated_port or default) != (port or default):
        raise ForbiddenError(f"origin {origin[:200]!r} is not this server's", field="origin")


def _host_and_port(url: str) -> tuple[str, int | None]:
    """Return both in lower case, without brackets; an empty host where there is none to be read."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "", parts.port
    except ValueError:
        return "", None
