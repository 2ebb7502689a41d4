"""Templates, and what every page knows of its reader: language, time zone, sign-in."""

from functools import cache
from typing import Any

import jinja2
from fastapi import Request
from fastapi.responses import HTMLResponse, Response

from gradwire_server.access.actors import Actor
from gradwire_server.pages.assets import static_address
from gradwire_server.pages.languages import choose_language, languages
from gradwire_server.pages.wording import Wording, zone_of
from gradwire_server.services import services_of

# Cookies that a page's script or link sets; neither says anything about who is reading.
LANGUAGE_COOKIE = "gradwire_language"
ZONE_COOKIE = "gradwire_zone"
YEAR_SECONDS = 365 * 24 * 3600

# Sent by our script, which wants the part of a page that goes into the dialog, and no redirects.
PART_HEADER = "x-gradwire-part"


@cache
def environment() -> jinja2.Environment:
    """Return the templates; every value is escaped, and a missing one is an error."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("gradwire_web", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def wording_of(request: Request) -> Wording:
    """Return the words for the reader of this request."""
    language = choose_language(
        request.query_params.get("language"),
        request.cookies.get(LANGUAGE_COOKIE),
        request.headers.get("accept-language", ""),
    )
    return Wording(language, services_of(request).now(), zone_of(request.cookies.get(ZONE_COOKIE)))


def wants_part(request: Request) -> bool:
    """Return whether our script asks, not the browser itself."""
    return PART_HEADER in request.headers


def render(
    request: Request, words: Wording, template: str, actor: Actor | None, *, http_status: int = 200, **values: Any
) -> Response:
    """Return a page, or a part of one.

    Args:
        request: What is answered; its address decides the links between languages.
        words: Of the reader.
        template: Name of the template.
        actor: Who is signed in, if anybody.
        http_status: Of the answer.
        values: What the template is filled with.
    """
    html = (
        environment()
        .get_template(template)
        .render(
            words=words,
            say=words.say,
            say_many=words.say_many,
            language=words.language,
            in_language=lambda code: f"?{request.url.include_query_params(language=code).query}",
            languages=tuple(languages().values()),
            zone=getattr(words.zone, "key", "UTC"),
            gap="" if words.language.code == "zh" else " ",
            static=static_address,
            actor=actor,
            **values,
        )
    )
    answer = HTMLResponse(
        html, http_status, headers={"Cache-Control": "no-store", "Vary": "Accept-Language, Cookie"}
    )
    if request.query_params.get("language") == words.language.code:
        answer.set_cookie(LANGUAGE_COOKIE, words.language.code, max_age=YEAR_SECONDS, samesite="lax")
    return answer
