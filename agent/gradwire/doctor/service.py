"""Checks of the server as this machine sees it: reachable, token, clock."""

import email.utils
import os
import time
from collections.abc import Iterator

from gradwire_protocol import routes
from gradwire_protocol.identity import new_id

from gradwire.doctor.findings import Finding, failed, ok, warning
from gradwire.errors import SettingError, UnreachableError
from gradwire.transport.http import Answer, ServerLink, clean_server, exposes_token

_TIMEOUT_SECONDS = 5.0

# The server's date has whole seconds; events of one second keep their order by step and by receipt anyway.
_MAX_SKEW_SECONDS = 2.0

_START = "gradwire-server serve"
_MAKE_TOKEN = "export GRADWIRE_TOKEN=$(gradwire-server token create --kind ingest)"


def examine(server: str | None, token: str | None) -> Iterator[Finding]:
    """Yield what can be said of the server: its address, then the token and the clock where it answers."""
    server = server or os.environ.get("GRADWIRE_SERVER")
    token = token or os.environ.get("GRADWIRE_TOKEN")
    if not server:
        yield warning(
            "server",
            "none is set: a run is measured and waits in the spool, and nobody sees or steers it",
            "export GRADWIRE_SERVER=http://HOST:8420",
        )
        return
    try:
        link = ServerLink(clean_server(server), token)
    except SettingError as error:
        yield failed("server", str(error), "pip install 'gradwire[agent]'" if "httpx" in str(error) else "")
        return
    try:
        yield from _ask(link, token)
    finally:
        link.close()


def _ask(link: ServerLink, token: str | None) -> Iterator[Finding]:
    asked_at = time.time()
    try:
        answer = link.send("GET", routes.READYZ, timeout_seconds=_TIMEOUT_SECONDS)
        answered_at = time.time()
        yield _server(link.server, answer)
        if answer.is_success:
            yield _token(link, token)
            yield clock(answer.headers.get("date", ""), asked_at, answered_at)
    except UnreachableError as error:
        yield failed("server", str(error), _START)


def _server(server: str, answer: Answer) -> Finding:
    if answer.is_success:
        return ok("server", f"{server} is ready")
    if answer.status == 503:
        return failed("server", f"{server} cannot work: {answer.detail.message}", "gradwire-server migrate")
    return failed("server", f"{server} is no Gradwire server: {answer.detail.message}", "")


def _token(link: ServerLink, token: str | None) -> Finding:
    """Ask as an agent would, for a run that nobody knows: that changes nothing on the server."""
    if not token:
        return failed("token", "none is set, so the server takes no measurements", _MAKE_TOKEN)
    path = routes.AGENT_DIRECTIVE.format(run=new_id())
    params: dict[str, str | int | float] = {"attempt": new_id(), "wait": 0}
    answer = link.send("GET", path, params=params, timeout_seconds=_TIMEOUT_SECONDS)
    if answer.is_success:
        text = "the server takes measurements with it"
        if exposes_token(link.server, token):
            return warning("token", f"{text}, but it travels readable by others; use an https address")
        return ok("token", text)
    if answer.status == 403:
        return warning("token", f"good for commands, not for training: {answer.detail.message}", _MAKE_TOKEN)
    return failed("token", answer.detail.message, _MAKE_TOKEN)


def clock(date: str, asked_at: float, answered_at: float) -> Finding:
    """Compare this clock, read before and after the question, Unix seconds, with the server's date."""
    try:
        stated = email.utils.parsedate_to_datetime(date).timestamp()
    except ValueError:
        return warning("clock", "the server states no date to compare with")
    # What it states was cut to whole seconds somewhere between question and answer.
    ahead, behind = asked_at - (stated + 1.0), stated - answered_at
    skew = max(ahead, behind, 0.0)
    if skew <= _MAX_SKEW_SECONDS:
        return ok("clock", f"within {_MAX_SKEW_SECONDS:g} s of the server's")
    way = "ahead of" if ahead > 0 else "behind"
    return warning("clock", f"{skew:.0f} s {way} the server's", "timedatectl set-ntp true")
