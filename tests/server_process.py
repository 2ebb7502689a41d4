"""A real `gradwire-server` in a process of its own, for tests of any room.

from server_process import ServerProcess, server  # the fixture: one server per test module
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

START_SECONDS = 60.0
STOP_SECONDS = 20.0


class ServerProcess:
    """Starts a server on a free port with a data folder of its own; address and tokens survive `restart`."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.data = folder / "data"
        self.log_path = folder / "server.log"
        self._arguments = arguments
        self._ready_path = folder / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[httpx.Client] = []
        self.url = ""
        self.login_link = ""
        self.ingest_token = ""
        self.operator_token = ""

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def database_path(self) -> Path:
        return self.data / "gradwire.db"

    def start(self) -> None:
        """Start and wait until it listens; the first start chooses the port, later ones keep it."""
        port = self.url.rpartition(":")[2] or "0"
        self._ready_path.unlink(missing_ok=True)
        command = [sys.executable, "-m", "gradwire_server", "serve", "--data", str(self.data), "--port", port]
        command += ["--ready-file", str(self._ready_path), *self._arguments]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        ready = self._wait_ready()
        self.url, self.login_link = ready["url"], ready["login_link"]
        self.ingest_token = self.ingest_token or ready["ingest_token"]
        self.operator_token = self.operator_token or ready["operator_token"]

    def _wait_ready(self) -> dict[str, str]:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        while not self._ready_path.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server did not start:\n{self.log_path.read_text()}")
            time.sleep(0.02)
        ready: dict[str, str] = json.loads(self._ready_path.read_text())
        return ready

    def kill(self) -> None:
        """End it as a crash would, with SIGKILL."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """Ask it to stop, wait, and return its exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(STOP_SECONDS)

    def close(self) -> None:
        """Stop it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.terminate()
                return
            self.kill()

    def restart(self) -> None:
        """Start again after `kill` or `terminate`, on the same port and data."""
        self.close()
        self.start()

    def agent(self, **options: object) -> httpx.Client:
        """Return a client with the ingest token."""
        return self._client(self.ingest_token, **options)

    def operator(self, **options: object) -> httpx.Client:
        """Return a client with the operator token."""
        return self._client(self.operator_token, **options)

    def anonymous(self, **options: object) -> httpx.Client:
        """Return a client without a token; like all clients made here, it is closed with the server."""
        client = httpx.Client(base_url=self.url, timeout=30.0, trust_env=False, **options)  # type: ignore[arg-type]
        self._clients.append(client)
        return client

    def browser(self) -> httpx.Client:
        """Return a client logged in by link, which states its origin as a browser does; spends the link."""
        client = self.anonymous(headers={"Origin": self.url})
        answer = client.post("/login", data={"secret": self.login_link.rpartition("/")[2]})
        assert answer.status_code == 303, answer.text
        return client

    def _client(self, token: str, **options: object) -> httpx.Client:
        return self.anonymous(headers={"Authorization": f"Bearer {token}"}, **options)

    def __enter__(self) -> "ServerProcess":
        self.start()
        return self

    def __exit__(self, *_error: object) -> None:
        for client in self._clients:
            client.close()
        self.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A running server for one test module; tests keep apart by making runs of their own."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as process:
        yield process


def environment(process: ServerProcess) -> dict[str, str]:
    """Return this process's environment with the server's address and ingest token for an agent."""
    return {**os.environ, "GRADWIRE_SERVER": process.url, "GRADWIRE_TOKEN": process.ingest_token}
