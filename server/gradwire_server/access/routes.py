"""The login link, the session it is traded for, and its end.

Chat programs and mail scanners fetch links ahead of their readers, so opening the link only shows a button, and
pressing that spends the link.
"""

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from gradwire_server.access.actors import session_cookie
from gradwire_server.access.origin import check_host, check_origin
from gradwire_server.access.tokens import SESSION_SECONDS, end_session, use_login
from gradwire_server.answers import read_body
from gradwire_server.errors import UnauthorizedError
from gradwire_server.services import services_of

router = APIRouter(include_in_schema=False)

LOGIN = "/login"
LOGOUT = "/logout"
MAX_FORM_BYTES = 4096


def login_link(base_url: str, secret: str) -> str:
    """Return the address that shows the login button."""
    return f"{base_url}{LOGIN}/{secret}"


@router.post(LOGIN)
async def log_in(request: Request) -> Response:
    """Trade the link's secret for a session cookie and go to the runs.

    Raises:
        UnauthorizedError: The link is unknown, was used, or is too old.
    """
    services = services_of(request)
    check_host(request, services.settings)
    check_origin(request)
    form = parse_qs((await read_body(request.scope, request.receive, MAX_FORM_BYTES)).decode("utf-8", "replace"))
    link_secret = form.get("secret", [""])[0]
    now = services.now()
    secret = await services.database.write(lambda connection: use_login(connection, link_secret, now=now))
    if secret is None:
        raise UnauthorizedError(
            "this login link is spent or older than 15 minutes; gradwire-server login-link prints a new one"
        )
    answer = RedirectResponse("/", status_code=303)
    answer.set_cookie(
        session_cookie(services),
        secret,
        max_age=int(SESSION_SECONDS),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return answer


@router.post(LOGOUT)
async def log_out(request: Request) -> Response:
    """End the session, here and in the database."""
    services = services_of(request)
    check_host(request, services.settings)
    check_origin(request)
    secret = request.cookies.get(session_cookie(services))
    if secret is not None:
        now = services.now()
        await services.database.write(lambda connection: end_session(connection, secret, now=now))
        services.tokens.forget(secret)
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(session_cookie(services), httponly=True, samesite="strict")
    return answer
