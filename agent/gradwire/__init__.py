"""Gradients on the wire, seen and steered.

    session = gradwire.attach(ddp_model, optimizer=optimizer, run="llama-7b", server="http://host:8420")

Importing this package does not import torch; `attach` does.
"""

from typing import TYPE_CHECKING, Any

from gradwire.errors import AttachError, GradwireError, PlanMismatchError, SettingError

if TYPE_CHECKING:
    from gradwire.attachment import attach
    from gradwire.session import Session

__all__ = ["AttachError", "GradwireError", "PlanMismatchError", "Session", "SettingError", "attach"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for."""
    if name == "attach":
        from gradwire.attachment import attach

        return attach
    if name == "Session":
        from gradwire.session import Session

        return Session
    raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
