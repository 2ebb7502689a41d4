"""The interface described: OpenAPI of all routes, and the schema of what agents send."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from gradwire_protocol import routes
from gradwire_protocol.codecs import CATALOGUE
from gradwire_protocol.messages import PROTOCOL, Batch, BatchAnswer, ErrorAnswer

from gradwire_server.answers import json_answer

router = APIRouter(tags=["interface"])

REFERENCE = "#/components/schemas/{name}"

# Every type that a route's description refers to; their schemas become OpenAPI's components.
_described: list[type] = [Batch, BatchAnswer, ErrorAnswer]


def describe(body: type | None, answers: Mapping[int, type | None]) -> dict[str, Any]:
    """Return the part of a route's OpenAPI that FastAPI cannot know, since bodies are read by msgspec.

    Args:
        body: The message in the request, if it has one.
        answers: The message by status; None is an answer whose fields are not promised.
    """
    operation: dict[str, Any] = {"responses": {str(status): _response(kind) for status, kind in answers.items()}}
    operation["responses"]["default"] = _response(ErrorAnswer, "Any error, in the one shape")
    if body is not None:
        operation["requestBody"] = {"required": True, "content": _content(body)}
    return operation


def _response(kind: type | None, text: str = "") -> dict[str, Any]:
    description = {"description": text or (kind.__name__ if kind else "Done")}
    return description if kind is None else {**description, "content": _content(kind)}


def _content(kind: type) -> dict[str, Any]:
    if kind not in _described:
        _described.append(kind)
    return {"application/json": {"schema": {"$ref": REFERENCE.format(name=kind.__name__)}}}


def openapi(app: FastAPI) -> dict[str, Any]:
    """Return OpenAPI of the application with the protocol's messages as components."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, routes=app.routes)
        _, components = msgspec.json.schema_components(_described, ref_template=REFERENCE)
        document.setdefault("components", {}).setdefault("schemas", {}).update(components)
        document["paths"][routes.BATCHES] = {"post": _batches()}
        app.openapi_schema = document
    return app.openapi_schema


def _batches() -> dict[str, Any]:
    # Served in front of FastAPI, which therefore does not list it.
    return {
        "tags": ["agents"],
        "summary": "Post Batch",
        "description": (
            "Store a batch of a stream, once. A number that is already stored is answered like a new one; 409 "
            '"gap" names the number that the stream must go on with; 413 names the limit.'
        ),
        **describe(Batch, {200: BatchAnswer}),
    }


@router.get(routes.CODECS)
async def get_codecs() -> Response:
    """Return the catalogue of codecs: parameters with ranges, bits, and what they are unsafe with."""
    return json_answer(CATALOGUE)


@router.get(routes.SCHEMA)
async def get_schema() -> Response:
    """Return the JSON schema of the batches of this server's protocol."""
    (schema,), components = msgspec.json.schema_components([Batch], ref_template="#/$defs/{name}")
    return json_answer({"protocol": PROTOCOL, **schema, "$defs": components})
