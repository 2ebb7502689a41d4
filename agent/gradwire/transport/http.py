"""Requests to the server: one keep-alive connection, bounded answers, foreign errors mapped at this border."""

import contextlib
import ipaddress
import logging
import socket
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from gradwire_protocol.messages import ErrorAnswer, ErrorDetail
from msgspec import Struct

from gradwire.errors import SettingError, UnreachableError

# Every thread of the agent has a name that begins with this.
THREAD_PREFIX = "gradwire-"

# A run's whole page as JSON is below 1 MB; more is not from our server.
_MAX_ANSWER_BYTES = 16 * 1024 * 1024

# Longer than the idle interval of batches, or every batch would open a connection of its own.
_KEEP_ALIVE_SECONDS = 60.0
_CONNECT_SECONDS = 5.0


class Answer(Struct, frozen=True):
    """An HTTP answer, read whole."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    @property
    def retry_after_seconds(self) -> float:
        """How long the server asks to be left alone, 0 if it does not say; dates are not understood."""
        text = self.headers.get("retry-after", "")
        return min(float(text), 3600.0) if text.isdigit() else 0.0

    @property
    def detail(self) -> ErrorDetail:
        """The error that the server states, or one in the same shape for an answer that is not our server's."""
        with contextlib.suppress(msgspec.DecodeError):
            answer = msgspec.json.decode(self.body, type=_StrictErrorAnswer)
            return answer.error
        location = self.headers.get("location", "")
        if 300 <= self.status < 400:
            return ErrorDetail(code="redirect", message=f"the address leads on to {location[:200]!r}; use that one")
        return ErrorDetail(
            code="foreign", message=f"HTTP status {self.status}, not in the words of a Gradwire server"
        )


class _StrictErrorAnswer(ErrorAnswer, kw_only=True):
    """An error answer that must hold its error."""

    error: ErrorDetail


class _SilentThreads(logging.Filter):
    """Keeps what httpx says of the agent's own requests, two lines a second, out of the training's log."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.threadName or "").startswith(THREAD_PREFIX)


_silent_threads = _SilentThreads()
for _name in ("httpx", "httpcore.connection", "httpcore.http11", "httpcore.proxy"):
    logging.getLogger(_name).addFilter(_silent_threads)


class ServerLink:
    """A server's address with a token; requests are made by one thread, `abort` by any."""

    def __init__(self, server: str, token: str | None) -> None:
        """Take a base URL as `clean_server` returns it.

        Raises:
            SettingError: httpx is not installed, or the token is none.
        """
        httpx = _import_httpx()
        self.server = server
        headers = {"user-agent": "gradwire", "accept": "application/json"}
        if token:
            headers["authorization"] = f"Bearer {clean_token(token)}"
        self._client = httpx.Client(
            headers=headers,
            # A proxy set for the outside world cannot reach this machine's own loopback.
            trust_env=not is_loopback(server),
            # A team's own certificates, SSL_CERT_FILE or SSL_CERT_DIR, count wherever the server is.
            verify=httpx.create_ssl_context(),
            limits=httpx.Limits(max_connections=2, keepalive_expiry=_KEEP_ALIVE_SECONDS),
        )
        self._streams: list[Any] = []

    def send(
        self,
        method: str,
        path: str,
        *,
        timeout_seconds: float,
        body: bytes | None = None,
        params: Mapping[str, str | int | float] | None = None,
    ) -> Answer:
        """Send a request and read the whole answer, whatever its status.

        Raises:
            UnreachableError: No answer, an endless one, or none in time.
        """
        deadline = time.monotonic() + timeout_seconds
        httpx = _import_httpx()
        try:
            with self._client.stream(
                method,
                self.server + path,
                content=body,
                params=params,
                headers={"content-type": "application/json"} if body is not None else None,
                timeout=httpx.Timeout(timeout_seconds, connect=min(_CONNECT_SECONDS, timeout_seconds)),
                extensions={"trace": self._note_connection},
            ) as response:
                content = bytearray()
                for chunk in response.iter_bytes():
                    content += chunk
                    if len(content) > _MAX_ANSWER_BYTES or time.monotonic() > deadline:
                        raise UnreachableError(f"{self.server} answers without end")
                return Answer(response.status_code, dict(response.headers), bytes(content))
        except (httpx.TransportError, httpx.DecodingError, httpx.InvalidURL) as error:
            text = str(error) or type(error).__name__
            raise UnreachableError(f"{self.server} does not answer: {text}") from error

    def abort(self) -> None:
        """Break off the request in flight from another thread; `send` then raises UnreachableError."""
        for stream in self._streams:
            raw = stream.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; only by the thread that sends."""
        self._client.close()

    def _note_connection(self, name: str, info: dict[str, Any]) -> None:
        # httpx has no way to interrupt a request, so the socket below it is remembered for `abort`.
        if name in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._streams = [info["return_value"]]


def clean_server(server: str) -> str:
    """Return a server's base URL without a slash at its end; a path below which the server is mounted is kept.

    Raises:
        SettingError: It is not an http or https URL with a host; the text quotes it.
    """
    if "@" in server:
        # Not quoted, since what stands before the @ is a secret.
        raise SettingError("the server address holds a user name or password; give the token on its own instead")
    wanted = "wanted: http://HOST:PORT or https://HOST[:PORT][/PREFIX], an IPv6 host in brackets"
    try:
        parts = urlsplit(server.strip())
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError as error:
        raise SettingError(f"the server address {server!r} is not a URL ({error}); {wanted}") from error
    if not is_right or parts.query or parts.fragment or any(character.isspace() for character in server.strip()):
        raise SettingError(f"the server address {server!r} is not a server's base URL; {wanted}")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"


def clean_token(token: str) -> str:
    """Return a token without white space around it, such as the end of the line in a file.

    Raises:
        SettingError: It holds what no header can; the text does not quote it.
    """
    token = token.strip()
    if not token.isascii() or not token.isprintable() or " " in token:
        raise SettingError("the token (GRADWIRE_TOKEN) holds spaces or characters that no token has")
    return token


def is_loopback(server: str) -> bool:
    """Return whether a URL's host is this machine's loopback."""
    host = urlsplit(server).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def exposes_token(server: str, token: str | None) -> bool:
    """Return whether a token would travel readable by others: plain http to another machine."""
    return bool(token) and server.startswith("http://") and not is_loopback(server)


def _import_httpx() -> Any:
    try:
        import httpx
    except ImportError as error:
        raise SettingError("talking to a server needs httpx: pip install 'gradwire[agent]'") from error
    return httpx
