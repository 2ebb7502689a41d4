"""The pages: the list of runs, a run, and the parts of them that are fetched again while they are looked at."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from gradwire_protocol import routes

from gradwire_server.access.actors import Actor, reader
from gradwire_server.errors import NotFoundError
from gradwire_server.pages.rendering import render, wording_of
from gradwire_server.pages.run_page import run_context
from gradwire_server.pages.runs_page import rows
from gradwire_server.runs.reading import run_summaries, run_view
from gradwire_server.runs.views import RunView
from gradwire_server.services import Services, services_of

router = APIRouter(include_in_schema=False)
Reader = Annotated[Actor, Depends(reader)]

# Runs in the list; older ones are a link away.
NUM_RUNS = 100


@router.get("/")
async def show_runs(request: Request, actor: Reader, before: str | None = None) -> Response:
    """Show the newest runs, or those older than the run `before`."""
    return await _runs(request, actor, "runs.html", before)


@router.get("/live-part")
async def show_runs_part(request: Request, actor: Reader, before: str | None = None) -> Response:
    """Show the list alone, as it is now."""
    return await _runs(request, actor, "runs_live.html", before)


@router.get("/runs/{run}")
async def show_run(request: Request, run: str, actor: Reader, model: str | None = None) -> Response:
    """Show a run; of several attached models the first, or the one asked for."""
    return await _run(request, run, actor, "run.html", model)


@router.get("/runs/{run}/live-part")
async def show_run_part(request: Request, run: str, actor: Reader, model: str | None = None) -> Response:
    """Show what changes on a run's page, as it is now."""
    return await _run(request, run, actor, "run_live.html", model)


async def _runs(request: Request, actor: Actor, template: str, before: str | None) -> Response:
    services, words = services_of(request), wording_of(request)
    summaries = await services.database.query(
        lambda connection: run_summaries(
            connection, words.now, NUM_RUNS, before=before, server_started_at=services.started_at
        )
    )
    return render(
        request,
        words,
        template,
        actor,
        here="runs",
        rows=rows(words, summaries),
        older=summaries[-1].id if len(summaries) == NUM_RUNS else "",
        server=str(request.base_url).rstrip("/"),
        stream=routes.LIVE,
    )


async def _run(request: Request, run: str, actor: Actor, template: str, model: str | None) -> Response:
    services, words = services_of(request), wording_of(request)
    view = await load_run(services, run, model, words.now)
    return render(
        request,
        words,
        template,
        actor,
        here="run",
        stream=routes.RUN_LIVE.format(run=run),
        **run_context(words, view),
    )


async def load_run(services: Services, run: str, model: str | None, now: float) -> RunView:
    """Return a run's view.

    Raises:
        NotFoundError: Run or model is unknown.
    """
    view = await services.database.query(
        lambda connection: run_view(connection, run, now, model=model, server_started_at=services.started_at)
    )
    if view is None:
        raise NotFoundError(f"run {run[:60]!r} is not known", field="run")
    return view
