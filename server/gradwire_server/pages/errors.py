"""Errors as pages, for requests that a person's browser made."""

from dataclasses import dataclass

from fastapi import Request
from fastapi.responses import Response
from gradwire_protocol import routes
from gradwire_protocol.messages import Directive, ErrorDetail
from sqlalchemy.exc import SQLAlchemyError

from gradwire_server.access.actors import Actor, reader
from gradwire_server.answers import error_headers
from gradwire_server.errors import ServiceError
from gradwire_server.pages.rendering import render, wants_part, wording_of
from gradwire_server.pages.wording import Wording


def wants_page(request: Request) -> bool:
    """Return whether an error is to be a page: asked for by a browser or our script, and not of the API."""
    is_api = request.url.path.startswith(routes.API)
    accepts = "text/html" in request.headers.get("accept", "")
    return not is_api and (accepts or wants_part(request))


async def error_page(request: Request, status: int, detail: ErrorDetail) -> Response:
    """Return the page, or the part for the dialog, that says what went wrong and what to do."""
    words = wording_of(request)
    told = explain(words, status, detail)
    answer = render(
        request,
        words,
        "message_body.html" if wants_part(request) else "message.html",
        await _actor(request),
        http_status=status,
        here="",
        told=told,
        code=status,
    )
    answer.headers.update(error_headers(status))
    return answer


async def _actor(request: Request) -> Actor | None:
    try:
        return await reader(request)
    except (ServiceError, SQLAlchemyError):
        return None


@dataclass(frozen=True)
class Told:
    """What an error page says: a heading, sentences, and a command that helps."""

    heading: str
    texts: tuple[str, ...] = ()
    command: str = ""


def explain(words: Wording, status: int, detail: ErrorDetail) -> Told:
    """Return what to say; a message of the service stands as it is where the page has no words of its own."""
    if status == 401:
        text = words.say("Open a login link. On the server's machine this command prints one:")
        return Told(words.say("Sign in with a link"), (text,), "gradwire-server login-link")
    if detail.code == "conflict":
        return Told(words.say("Somebody else was faster"), (_conflict(words, detail.current),))
    if detail.code == "closed":
        advice = words.say("If it still trains, type on any of its nodes:")
        return Told(
            words.say("This run takes no changes now"), (detail.message, advice), "gradwire rollback --local"
        )
    if status == 404:
        text = words.say("The address may be mistyped, or the run was never here.")
        return Told(words.say("There is nothing here"), (text,))
    if status in (403, 413, 422):
        return Told(words.say("That was not accepted"), (detail.message,))
    if status == 503:
        text = words.say("Try again in a moment. Training is not affected.")
        return Told(words.say("The server is busy"), (text,))
    return Told(words.say("Something went wrong here"), (words.say("The server's log has the details."),))


def _conflict(words: Wording, current: Directive | None) -> str:
    advice = words.say("Look at the run again before you decide.")
    if current is None:
        return words.join((words.say("The run has changed since you opened its page."), advice))
    what = words.say("a rollback") if current.kind == "rollback" else words.codec(current.plan.codec)
    made = words.say(
        "{who} asked for {what} at {time}, after you opened the page.",
        who=current.author,
        what=what,
        time=words.clock(current.requested_at),
    )
    return words.join((made, advice))
