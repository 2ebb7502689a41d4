"""The service inside the test's own process, with a clock that the test moves."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from socket import create_server

import httpx
import uvicorn
from gradwire_server.access.tokens import Kind, create_login, create_token
from gradwire_server.app import create_app
from gradwire_server.config import Settings
from gradwire_server.services import Services


class InsideServer:
    """A server in a thread; `advance` moves its clock."""

    def __init__(self, settings: Settings) -> None:
        self._offset_seconds = 0.0
        self._listener = create_server((settings.host, 0))
        settings = replace(settings, port=self._listener.getsockname()[1])
        self.app = create_app(settings, now=self.now)
        self.services: Services = self.app.state.services
        self.url = settings.base_url
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="error", timeout_graceful_shutdown=1))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._clients: list[httpx.Client] = []

    def now(self) -> float:
        return time.time() + self._offset_seconds

    def advance(self, seconds: float) -> None:
        self._offset_seconds += seconds

    def token(self, kind: Kind, name: str = "ann") -> str:
        return self.services.database.write_sync(lambda c: create_token(c, kind, name, now=self.now()))

    def login_secret(self, name: str = "ann") -> str:
        return self.services.database.write_sync(lambda c: create_login(c, name, now=self.now()))

    def client(self, token: str | None = None, **headers: str) -> httpx.Client:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        client = httpx.Client(base_url=self.url, headers={**bearer, **headers}, timeout=30.0, trust_env=False)
        self._clients.append(client)
        return client

    def browser(self, name: str = "ann") -> httpx.Client:
        client = self.client(Origin=self.url)
        answer = client.post("/login", data={"secret": self.login_secret(name)})
        assert answer.status_code == 303, answer.text
        return client

    def start(self) -> None:
        self._thread.start()
        deadline = time.monotonic() + 30
        while not self._server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()


@contextmanager
def inside_server(folder: Path, **settings: object) -> Iterator[InsideServer]:
    """Run a server with its data in `folder`."""
    made = InsideServer(Settings(data=folder, **settings))  # type: ignore[arg-type]
    made.start()
    try:
        yield made
    finally:
        made.close()
