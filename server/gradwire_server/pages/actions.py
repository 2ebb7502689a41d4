"""What the forms of a run's page do; they work without JavaScript, and our script sends the same forms."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import RedirectResponse, Response
from gradwire_protocol.messages import BaselineRequest, ReasonRequest, RollbackRequest

from gradwire_server.access.actors import Actor, operator
from gradwire_server.directives.service import give_reason, roll_back, set_plan
from gradwire_server.errors import InvalidError
from gradwire_server.pages.forms import confirmed_fields, read_form, set_request, whole
from gradwire_server.pages.rendering import render, wants_part, wording_of
from gradwire_server.pages.routes import load_run
from gradwire_server.pages.sentences.change import question
from gradwire_server.runs.baseline import choose_baseline
from gradwire_server.services import services_of

router = APIRouter(include_in_schema=False)
Operator = Annotated[Actor, Depends(operator)]


@router.post("/runs/{run}/rollback")
async def post_rollback(request: Request, run: str, actor: Operator) -> Response:
    """Roll back at once; the page says what becomes of it."""
    form = await read_form(request)
    message = RollbackRequest(model=form.get("model", "model"), reason=form.get("reason", "").strip())
    await roll_back(services_of(request), run, message, actor.name)
    return _done(request, run)


@router.post("/runs/{run}/change")
async def post_change(request: Request, run: str, actor: Operator) -> Response:
    """Ask before compression is turned on; then do it."""
    services, words = services_of(request), wording_of(request)
    form = await read_form(request)
    view = await load_run(services, run, form.get("model"), words.now)
    message = set_request(form, view.plan)
    if message.plan.codec == "none" or form.get("confirmed") == "1":
        await set_plan(services, run, message, actor.name)
        return _done(request, run)
    choice = next((choice for choice in view.codecs if choice.name == message.plan.codec), None)
    if choice is None:
        raise InvalidError(f"this training cannot run {message.plan.codec}", field="codec")
    return render(
        request,
        words,
        "confirm_body.html" if wants_part(request) else "confirm.html",
        actor,
        here="run",
        run=view,
        question=question(words, view, choice),
        fields=confirmed_fields(form),
    )


@router.post("/runs/{run}/reason")
async def post_reason(request: Request, run: str, actor: Operator) -> Response:
    """Add the reason of a change after it was made."""
    form = await read_form(request)
    message = ReasonRequest(reason=form.get("reason", "").strip(), model=form.get("model", "model"))
    revision = whole(form.get("revision", ""), field="revision")
    await give_reason(services_of(request), run, revision, message, actor.name)
    return _done(request, run)


@router.post("/runs/{run}/baseline")
async def post_baseline(request: Request, run: str, actor: Operator) -> Response:
    """Choose the run that quality is compared with, or none."""
    form = await read_form(request)
    message = BaselineRequest(baseline=form.get("baseline") or None)
    services = services_of(request)
    now = services.now()
    is_new = await services.database.write(
        lambda connection: choose_baseline(connection, run, message, author=actor.name, now=now)
    )
    if is_new:
        services.hub.publish(run, "event")
    return _done(request, run)


def _done(request: Request, run: str) -> Response:
    """Show the run again; our script does that by itself."""
    return Response(status_code=204) if wants_part(request) else RedirectResponse(f"/runs/{run}", status_code=303)
