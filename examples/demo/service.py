"""The demo's server on this host, and the requests that the demo makes to it as an operator."""

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
import msgspec
from gradwire_protocol import routes
from gradwire_protocol.messages import RollbackRequest, SetRequest
from gradwire_protocol.plans import PlanSpec

START_DEADLINE_SECONDS = 60.0
GRACE_SECONDS = 10.0


class ServerError(RuntimeError):
    """Raised when the server did not start or refused a request; the text holds what it said."""


class Server:
    """`gradwire-server serve` on an SQLite file in a fresh folder, from construction until the context ends."""

    def __init__(self, folder: Path) -> None:
        ready, self._log = folder / "ready.json", folder / "server.log"
        command = [str(Path(sys.executable).with_name("gradwire-server")), "serve", "--port", "0"]
        if shutil.which("setpriv"):
            # Ends the server even when the demo is killed and can end nothing itself.
            command = ["setpriv", "--pdeathsig", "TERM", "--", *command]
        with self._log.open("wb") as log:
            # A session of its own, so that Ctrl-C ends the training first and the server last.
            self._process = subprocess.Popen(
                [*command, "--data", str(folder / "server"), "--ready-file", str(ready)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            facts = self._wait_for(ready)
        except BaseException:
            self.close()
            raise
        self.url: str = facts["url"]
        self.login_link: str = facts["login_link"]
        self.ingest_token: str = facts["ingest_token"]
        self._operator = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {facts['operator_token']}"}, timeout=30.0
        )

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the server."""
        parts = urlsplit(self.url)
        assert parts.hostname is not None
        assert parts.port is not None
        return parts.hostname, parts.port

    def runs(self) -> list[dict[str, Any]]:
        """Return the summaries of all runs, newest first."""
        runs: list[dict[str, Any]] = self._ask("GET", routes.RUNS)["runs"]
        return runs

    def run(self, run: str) -> dict[str, Any]:
        """Return what the page of a run shows."""
        return self._ask("GET", routes.RUN.format(run=run))

    def watch(self, run: str) -> None:
        """Keep the run's live stream open as a browser does, so that its numbers come every second."""
        threading.Thread(target=self._drain, args=(routes.RUN_LIVE.format(run=run),), daemon=True).start()

    def set_codec(self, run: str, codec: str, *, reason: str) -> None:
        """Ask for a codec, against the run's present revision."""
        revision = self.run(run)["revision"]
        request = SetRequest(plan=PlanSpec(codec=codec), revision=revision, reason=reason)
        self._ask("POST", routes.DIRECTIVES.format(run=run), request)

    def roll_back(self, run: str, *, reason: str) -> None:
        """Ask for uncompressed training."""
        self._ask("POST", routes.ROLLBACK.format(run=run), RollbackRequest(reason=reason))

    def windows(self, run: str, first_step: int, last_step: int) -> list[dict[str, Any]]:
        """Return the sums over all ranks of the windows that begin at `first_step` or later, up to `last_step`."""
        query = {"first_step": first_step, "last_step": last_step}
        windows: list[dict[str, Any]] = self._ask("GET", routes.SERIES.format(run=run), query=query)["steps"]
        return windows

    def close(self) -> None:
        """End the server."""
        self._process.terminate()
        try:
            self._process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_for(self, ready: Path) -> dict[str, Any]:
        deadline = time.monotonic() + START_DEADLINE_SECONDS
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"the server did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.05)
        facts: dict[str, Any] = msgspec.json.decode(ready.read_bytes())
        return facts

    def _drain(self, path: str) -> None:
        with contextlib.suppress(httpx.HTTPError), self._operator.stream("GET", path) as stream:
            for _ in stream.iter_raw():
                pass

    def _ask(
        self, method: str, path: str, message: object = None, *, query: Mapping[str, int] | None = None
    ) -> dict[str, Any]:
        body = None if message is None else msgspec.json.encode(message)
        answer = self._operator.request(
            method, path, content=body, params=query, headers={"Content-Type": "application/json"} if body else None
        )
        if answer.is_error:
            raise ServerError(f"{method} {path} was answered with {answer.status_code}: {answer.text}")
        content: dict[str, Any] = answer.json()
        return content

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
