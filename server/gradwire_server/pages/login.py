"""The page behind a login link: it shows a button, and pressing that spends the link."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from gradwire_server.access.routes import LOGIN
from gradwire_server.pages.rendering import render, wording_of

router = APIRouter(include_in_schema=False)


@router.get(LOGIN + "/{secret}")
async def show_login(request: Request, secret: str) -> Response:
    """Show the button; the link stays unused, and no copy of the page is kept."""
    return render(request, wording_of(request), "login.html", None, here="", secret=secret)
