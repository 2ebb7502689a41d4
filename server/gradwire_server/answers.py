"""Requests in and answers out: bodies within their limit, JSON by msgspec, every error in one shape."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from gradwire_protocol import limits
from gradwire_protocol.coding import decode
from gradwire_protocol.errors import ProtocolError, TooLargeError
from gradwire_protocol.messages import ErrorAnswer, ErrorDetail
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope

from gradwire_server.database.writer import as_service_error
from gradwire_server.errors import InvalidError, ServiceError, SlowError, protocol_detail

T = TypeVar("T")
logger = logging.getLogger(__name__)

# So much of a refused body is still received and thrown away: who sends a little too much then reads the answer,
# where hanging up amid the sending would reset the connection and lose it.
DISCARDED_BYTES = 4 * limits.MAX_BODY_BYTES
DISCARD_SECONDS = 2.0

# A body of the largest size needs one second at 1 MB/s; who needs longer than this holds a connection for nothing.
BODY_SECONDS = 10.0

RETRY_SECONDS = 1
HTTP_CODES = {404: "not_found", 405: "method_not_allowed"}


class ClientGoneError(Exception):
    """Raised when the client hangs up before its body is complete; nobody is left to answer."""


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return `value` as strict JSON: non-finite floats become null."""
    return Response(msgspec.json.encode(value), status, headers, "application/json")


async def read_body(scope: Scope, receive: Receive, limit: int = limits.MAX_BODY_BYTES) -> bytes:
    """Return a request's body, giving up as soon as it passes the limit, whatever its headers say.

    Raises:
        TooLargeError: It has more than `limit` bytes.
        InvalidError: It is compressed.
        SlowError: It is not complete after `BODY_SECONDS`.
        ClientGoneError: The client went away.
    """
    headers = dict(scope["headers"])
    encoding = headers.get(b"content-encoding", b"identity").decode("latin-1")
    if encoding != "identity":
        raise InvalidError(f"content-encoding {encoding[:40]!r}; wanted: none", field="content-encoding")
    stated = headers.get(b"content-length", b"0")
    try:
        _check_size(int(stated) if stated.isdigit() else 0, limit)
        async with asyncio.timeout(BODY_SECONDS):
            return await _receive_body(receive, limit)
    except TimeoutError as error:
        raise SlowError(f"the body was not complete after {BODY_SECONDS:g} s", field="body") from error
    except TooLargeError:
        await _discard_body(receive)
        raise


async def _receive_body(receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    num_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        parts.append(message.get("body", b""))
        num_bytes += len(parts[-1])
        _check_size(num_bytes, limit)
        if not message.get("more_body", False):
            return b"".join(parts)


async def _discard_body(receive: Receive) -> None:
    num_bytes = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while num_bytes < DISCARDED_BYTES:
                message = await receive()
                num_bytes += len(message.get("body", b""))
                if not message.get("more_body", False):
                    return


def _check_size(num_bytes: int, limit: int) -> None:
    if num_bytes > limit:
        raise TooLargeError(f"the body has more than {limit} bytes; send it in parts", field="body", limit=limit)


async def read_message(request: Request, kind: type[T]) -> T:
    """Return the request's body as a message of the protocol.

    Raises:
        ServiceError, ProtocolError: As `read_body` and `gradwire_protocol.coding.decode`.
    """
    return decode(await read_body(request.scope, request.receive), kind)


def error_detail(error: Exception) -> tuple[int, ErrorDetail]:
    """Return HTTP status and detail of any error; what is not foreseen tells the client nothing of the inside."""
    if isinstance(error, OperationalError):
        error = as_service_error(error)
    if isinstance(error, ServiceError):
        return error.status, error.detail()
    if isinstance(error, ProtocolError):
        return protocol_detail(error)
    if isinstance(error, HTTPException):
        code = HTTP_CODES.get(error.status_code, "invalid")
        return error.status_code, ErrorDetail(code=code, message=str(error.detail))
    return 500, ErrorDetail(code="internal", message="internal error; the server's log has the details")


def error_headers(status: int) -> dict[str, str]:
    """Return what a client needs to know beside the body."""
    if status == 503:
        return {"Retry-After": str(RETRY_SECONDS)}
    if status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if status in (408, 413):
        # The rest of the body is not wanted; without this it would still be received and thrown away.
        return {"Connection": "close"}
    return {}


def error_answer(status: int, detail: ErrorDetail, headers: Mapping[str, Any] | None = None) -> Response:
    """Return the one shape of every error."""
    return json_answer(ErrorAnswer(error=detail), status, {**error_headers(status), **(headers or {})})
