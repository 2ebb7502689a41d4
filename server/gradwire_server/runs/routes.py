"""Runs over HTTP: what the pages show, as JSON."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from gradwire_protocol import routes
from gradwire_protocol.limits import MAX_INTEGER
from gradwire_protocol.messages import BaselineRequest
from msgspec import Struct
from sqlalchemy import select

from gradwire_server.access.actors import Actor, operator, reader
from gradwire_server.answers import json_answer, read_message
from gradwire_server.database.tables import runs
from gradwire_server.errors import NotFoundError
from gradwire_server.runs.baseline import choose_baseline
from gradwire_server.runs.changes import event_views
from gradwire_server.runs.reading import run_summaries, run_view
from gradwire_server.runs.views import EventView, RunSummary, RunView
from gradwire_server.schema import describe
from gradwire_server.services import services_of

router = APIRouter(tags=["runs"])

MAX_PAGE = 200


class RunList(Struct, frozen=True, kw_only=True):
    """Runs, newest first; `next` is the `before` of the following page, null on the last one."""

    runs: list[RunSummary]
    next: str | None


class EventList(Struct, frozen=True, kw_only=True):
    """Lines of the history, newest first; `next` is the `before` of the following page, null on the last one."""

    events: tuple[EventView, ...]
    next: int | None


class BaselineAnswer(Struct, frozen=True, kw_only=True):
    """The run that quality is compared with from now on."""

    baseline: str | None
    is_new: bool


@router.get(routes.RUNS, dependencies=[Depends(reader)], openapi_extra=describe(None, {200: RunList}))
def get_runs(
    request: Request, limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50, before: str | None = None
) -> Response:
    """Return the newest runs, or those older than the run `before`."""
    services = services_of(request)
    with services.database.read() as connection:
        found = run_summaries(
            connection, services.now(), limit, before=before, server_started_at=services.started_at
        )
    return json_answer(RunList(runs=found, next=found[-1].id if len(found) == limit else None))


@router.get(routes.RUN, dependencies=[Depends(reader)], openapi_extra=describe(None, {200: RunView}))
def get_run(request: Request, run: str, model: str | None = None) -> Response:
    """Return everything that a run's page shows but its charts."""
    services = services_of(request)
    with services.database.read() as connection:
        view = run_view(connection, run, services.now(), model=model, server_started_at=services.started_at)
    if view is None:
        raise NotFoundError(_unknown(run, model), field="run" if model is None else "model")
    return json_answer(view)


@router.get(routes.EVENTS, dependencies=[Depends(reader)], openapi_extra=describe(None, {200: EventList}))
def get_events(
    request: Request,
    run: str,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
    before: Annotated[int | None, Query(ge=0, le=MAX_INTEGER)] = None,
) -> Response:
    """Return the newest lines of a run's history, or those older than number `before`."""
    services = services_of(request)
    with services.database.read() as connection:
        if connection.execute(select(runs.c.id).where(runs.c.id == run)).first() is None:
            raise NotFoundError(_unknown(run), field="run")
        found = event_views(connection, run, limit=limit, before=before)
    return json_answer(EventList(events=found, next=found[-1].number if len(found) == limit else None))


@router.post(routes.BASELINE, openapi_extra=describe(BaselineRequest, {200: BaselineAnswer}))
async def post_baseline(request: Request, run: str, actor: Annotated[Actor, Depends(operator)]) -> Response:
    """Choose the run that quality is compared with; null takes the choice back."""
    message = await read_message(request, BaselineRequest)
    services = services_of(request)
    now = services.now()
    is_new = await services.database.write(
        lambda connection: choose_baseline(connection, run, message, author=actor.name, now=now)
    )
    if is_new:
        services.hub.publish(run, "event")
    return json_answer(BaselineAnswer(baseline=message.baseline, is_new=is_new))


def _unknown(run: str, model: str | None = None) -> str:
    return f"run {run[:60]!r} does not exist" + ("" if model is None else f" or has no model {model[:60]!r}")
