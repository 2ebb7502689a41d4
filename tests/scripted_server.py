"""A small HTTP server whose answers a test writes down beforehand, on a real socket."""

import json
import socket
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
from gradwire_protocol.messages import Batch, BatchAnswer, ErrorAnswer, ErrorDetail


class Heard(msgspec.Struct):
    """One request as it came, with its time by `time.monotonic`."""

    at: float
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    # The client's end of the connection.
    port: int

    @property
    def batch(self) -> Batch:
        return msgspec.json.decode(self.body, type=Batch)


class Reply(msgspec.Struct):
    """An answer; `delay_seconds` passes before its first byte, inf for never."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = {}
    delay_seconds: float = 0.0


Script = Callable[[Heard], Reply]


def accepted(heard: Heard, interval_seconds: float = 0.1) -> Reply:
    """Answer a batch as a server that stores it."""
    answer = BatchAnswer(number=heard.batch.number, interval_seconds=interval_seconds)
    return Reply(body=msgspec.json.encode(answer))


def refusal(status: int, code: str, **details: Any) -> Reply:
    """Return an error in the one shape of errors."""
    detail = ErrorDetail(code=code, message=details.pop("message", f"because {code}"), **details)
    return Reply(status, msgspec.json.encode(ErrorAnswer(error=detail)))


class ScriptedServer:
    """Answers each request by the next script of the list, and all later ones by the last."""

    def __init__(self, *scripts: Script | Reply) -> None:
        self._scripts = list(scripts)
        self._lock = threading.Lock()
        self.heard: list[Heard] = []
        self.is_closing = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                owner._answer(self)

            def do_GET(self) -> None:
                owner._answer(self)

            def log_message(self, *_arguments: object) -> None:
                """Keep quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length", 0)))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        heard = Heard(time.monotonic(), handler.command, handler.path, headers, body, handler.client_address[1])
        with self._lock:
            self.heard.append(heard)
            script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
        reply = script if isinstance(script, Reply) else script(heard)
        if self.is_closing.wait(min(reply.delay_seconds, 3600.0)):
            return
        try:
            handler.send_response(reply.status)
            for name, value in {"content-length": str(len(reply.body)), **reply.headers}.items():
                handler.send_header(name, value)
            handler.end_headers()
            handler.wfile.write(reply.body)
        except OSError:
            # The client gave up waiting, which is what some tests are about.
            handler.close_connection = True

    def then(self, *scripts: Script | Reply) -> None:
        """Replace what is still to be answered."""
        with self._lock:
            self._scripts = list(scripts)

    def wait_for(self, num_requests: int, timeout_seconds: float = 20.0) -> list[Heard]:
        """Return what was heard once there are as many requests."""
        wait_until(lambda: len(self.heard) >= num_requests, timeout_seconds, lambda: f"{len(self.heard)} requests")
        return list(self.heard)

    def __enter__(self) -> "ScriptedServer":
        return self

    def __exit__(self, *_error: object) -> None:
        self.is_closing.set()
        self._server.shutdown()
        self._server.server_close()


def wait_until(
    is_so: Callable[[], bool], timeout_seconds: float = 20.0, state: Callable[[], object] = lambda: ""
) -> None:
    """Poll until something is so; an AssertionError with the state at the deadline."""
    deadline = time.monotonic() + timeout_seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {timeout_seconds} s: {state()}"
        time.sleep(0.01)


def unused_port() -> int:
    """Return a port that nobody listens on at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_json(value: object) -> bytes:
    """Return plain JSON."""
    return json.dumps(value).encode()
