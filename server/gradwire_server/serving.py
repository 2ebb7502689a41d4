"""One server process: its socket, its lock on the data folder, its start and its stop."""

import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import uvicorn
from fastapi import FastAPI

from gradwire_server.access.routes import login_link
from gradwire_server.access.tokens import Kind, create_login, create_token, has_session
from gradwire_server.app import create_app
from gradwire_server.config import Settings
from gradwire_server.errors import ConfigError
from gradwire_server.services import Services

# Longer than an agent's longest silence between batches, so that its connection is still open for the next one.
KEEP_ALIVE_SECONDS = 75

# Open streams end by themselves when the hub closes; what is left after this is cut.
STOP_SECONDS = 3

DEFAULT_OPERATOR = "operator"


class _Server(uvicorn.Server):
    """Tells when it listens, and ends open streams before it waits for them."""

    def __init__(self, config: uvicorn.Config, services: Services, ready_file: Path | None) -> None:
        super().__init__(config)
        self._services = services
        self._ready_file = ready_file

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            _announce(self._services, self._ready_file)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.hub.close()
        await super().shutdown(sockets)


def serve(settings: Settings, *, ready_file: Path | None = None) -> None:
    """Serve until SIGINT or SIGTERM; open streams end within 5 seconds.

    Args:
        settings: Port 0 takes a free port.
        ready_file: Written once the server listens, see `write_ready_file`.

    Raises:
        ConfigError: The settings cannot be served, the address is taken, or another process serves the data folder.
        SchemaError: The database was written by a newer program.
    """
    settings.check()
    with _exclusive(settings.data), _listen(settings) as listener:
        settings = replace(settings, port=listener.getsockname()[1])
        app = create_app(settings)
        _server(app, settings, ready_file).run(sockets=[listener])


def _server(app: FastAPI, settings: Settings, ready_file: Path | None) -> _Server:
    config = uvicorn.Config(
        app,
        # Login links are part of a path.
        access_log=False,
        log_level="warning",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        proxy_headers=settings.is_behind_proxy,
        forwarded_allow_ips="*" if settings.is_behind_proxy else None,
        ssl_certfile=settings.tls_cert,
        ssl_keyfile=settings.tls_key,
        server_header=False,
    )
    return _Server(config, app.state.services, ready_file)


@contextmanager
def _exclusive(data: Path) -> Iterator[None]:
    """Hold the data folder: waiting agents and browsers are woken inside one process only."""
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (data / "server.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.seek(0)
            raise ConfigError(f"{data} is already served by process {lock.read().strip()}") from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextmanager
def _listen(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from error
    with listener:
        yield listener


def _announce(services: Services, ready_file: Path | None) -> None:
    """Print where the server is and, on a terminal, how to log in; log files never see a link."""
    settings = services.settings
    print(f"Gradwire is at {settings.base_url}", flush=True)
    if ready_file is not None:
        write_ready_file(services, ready_file)
    with services.database.read() as connection:
        is_logged_in = has_session(connection, now=services.now())
    if is_logged_in:
        return
    if sys.stdout.isatty():
        print(f"Log in (once, within 15 minutes): {make_login_link(services)}")
    else:
        print("Log in: run `gradwire-server login-link` with the same --data for a link.")
    print("Agents need a token: gradwire-server token create --kind ingest", flush=True)


def make_login_link(services: Services, name: str = DEFAULT_OPERATOR) -> str:
    """Return a new login link for an operator."""
    now = services.now()
    secret = services.database.write_sync(lambda connection: create_login(connection, name, now=now))
    return login_link(services.settings.base_url, secret)


def write_ready_file(services: Services, path: Path) -> None:
    """Write address, a login link and fresh tokens as JSON, readable by this user only, whole or not at all.

    For programs that start a server and go on to use it: `{"url", "login_link", "ingest_token", "operator_token"}`.
    """
    ready = {
        "url": services.settings.base_url,
        "login_link": make_login_link(services),
        "ingest_token": _make_token(services, "ingest", "agent"),
        "operator_token": _make_token(services, "operator", DEFAULT_OPERATOR),
    }
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(ready, file)
    draft.replace(path)


def _make_token(services: Services, kind: Kind, name: str) -> str:
    return services.database.write_sync(lambda connection: create_token(connection, kind, name, now=services.now()))
