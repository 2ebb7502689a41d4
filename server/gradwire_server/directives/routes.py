"""Changes over HTTP: people and scripts ask, rank 0 fetches and answers."""

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import Response
from gradwire_protocol import limits, routes
from gradwire_protocol.coding import validate_record
from gradwire_protocol.messages import (
    ChangeAnswer,
    Directive,
    DirectiveAnswer,
    ReasonRequest,
    ResultReport,
    RollbackRequest,
    SetRequest,
)
from sqlalchemy import Connection, select

from gradwire_server.access.actors import Actor, ingest, operator
from gradwire_server.access.tokens import Token
from gradwire_server.answers import json_answer, read_message
from gradwire_server.database.tables import attempts
from gradwire_server.directives.delivery import wait_directive
from gradwire_server.directives.results import ModelRef, apply_result
from gradwire_server.directives.service import give_reason, roll_back, set_plan
from gradwire_server.errors import NotFoundError
from gradwire_server.schema import describe
from gradwire_server.services import services_of

router = APIRouter(tags=["changes"])

Operator = Annotated[Actor, Depends(operator)]
Revision = Annotated[int, Path(ge=0, le=limits.MAX_INTEGER)]
Agent = Annotated[Token, Depends(ingest)]


@router.post(routes.DIRECTIVES, openapi_extra=describe(SetRequest, {200: ChangeAnswer, 202: ChangeAnswer}))
async def post_set(request: Request, run: str, actor: Operator) -> Response:
    """Ask for a compression plan, made against the newest revision.

    409 "conflict" when the state changed since, with the present state and its author; 409 "closed" when nobody can
    answer; 422 when the plan or the codec is not acceptable, or the revision is missing.
    """
    message = await read_message(request, SetRequest)
    return _answer(await set_plan(services_of(request), run, message, actor.name))


@router.post(routes.ROLLBACK, openapi_extra=describe(RollbackRequest, {200: ChangeAnswer, 202: ChangeAnswer}))
async def post_rollback(request: Request, run: str, actor: Operator) -> Response:
    """Ask for uncompressed training at once.

    200 where there is nothing to do or the same is asked already, 409 "closed" when nobody can answer.
    """
    message = await read_message(request, RollbackRequest)
    return _answer(await roll_back(services_of(request), run, message, actor.name))


@router.post(routes.DIRECTIVE_REASON, openapi_extra=describe(ReasonRequest, {200: Directive}))
async def post_reason(request: Request, run: str, revision: Revision, actor: Operator) -> Response:
    """Give the reason of a change after it was made."""
    message = await read_message(request, ReasonRequest)
    return json_answer(await give_reason(services_of(request), run, revision, message, actor.name))


@router.get(routes.AGENT_DIRECTIVE, openapi_extra=describe(None, {200: DirectiveAnswer}))
async def get_directive(
    request: Request,
    run: str,
    attempt: str,
    token: Agent,
    model: str = "model",
    after: Annotated[int, Query(ge=0, le=limits.MAX_INTEGER)] = 0,
    wait: Annotated[float, Query(ge=0)] = limits.LONG_POLL_SECONDS,
) -> Response:
    """Wait for the newest open directive of this attempt above `after`; null when the wait runs out."""
    directive = await wait_directive(
        request,
        services_of(request),
        ModelRef(run, attempt, model),
        after=after,
        wait_seconds=min(wait, limits.LONG_POLL_SECONDS),
    )
    return json_answer(DirectiveAnswer(directive=directive))


@router.post(routes.AGENT_RESULT, openapi_extra=describe(ResultReport, {200: None}))
async def post_result(request: Request, run: str, token: Agent) -> Response:
    """Take a vote's result; sending it again, here or in the stream, changes nothing."""
    report = await read_message(request, ResultReport)
    validate_record(report.result, field="result")
    services = services_of(request)
    now = services.now()
    ref = ModelRef(run, report.attempt, report.model)
    is_new = await services.database.write(lambda connection: _apply(connection, ref, report, now))
    if is_new:
        services.hub.publish(run, "event")
    return json_answer({"is_new": is_new})


def _apply(connection: Connection, ref: ModelRef, report: ResultReport, now: float) -> bool:
    query = select(attempts.c.run).where(attempts.c.id == ref.attempt)
    if connection.execute(query).scalar_one_or_none() != ref.run:
        raise NotFoundError(f"run {ref.run[:60]!r} has no attempt {ref.attempt[:60]!r}", field="attempt")
    return apply_result(connection, ref, report.result, now=now)


def _answer(answer: ChangeAnswer) -> Response:
    return json_answer(answer, 202 if answer.is_new else 200)
