"""What a check found."""

from typing import Literal

from msgspec import Struct

State = Literal["ok", "warning", "failed"]


class Finding(Struct, frozen=True, kw_only=True):
    """One line of the examination."""

    check: str
    state: State
    text: str
    # The one command that helps; empty where all is well, or no command can.
    fix: str = ""


def ok(check: str, text: str) -> Finding:
    """Return that all is well."""
    return Finding(check=check, state="ok", text=text)


def warning(check: str, text: str, fix: str = "") -> Finding:
    """Return what works less well than it could."""
    return Finding(check=check, state="warning", text=text, fix=fix)


def failed(check: str, text: str, fix: str = "") -> Finding:
    """Return what keeps a run from being trained, measured or steered."""
    return Finding(check=check, state="failed", text=text, fix=fix)
