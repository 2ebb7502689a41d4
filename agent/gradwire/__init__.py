"""Gradients on the wire, seen and steered.

    session = gradwire.attach(ddp_model, optimizer=optimizer, run="llama-7b", server="http://host:8420")

Importing this package does not import torch; `attach` does.
"""

import importlib
from typing import TYPE_CHECKING, Any

from gradwire.errors import AttachError, GradwireError, SettingError, UnsteerableError

if TYPE_CHECKING:
    from gradwire_compression import PlanMismatchError

    from gradwire.attachment import attach
    from gradwire.session import Session
    from gradwire.states import checkpoint_entry, load_state, save_state

__all__ = [
    "AttachError",
    "GradwireError",
    "PlanMismatchError",
    "Session",
    "SettingError",
    "UnsteerableError",
    "attach",
    "checkpoint_entry",
    "load_state",
    "save_state",
]

# What needs torch is imported when it is first asked for.
_LAZY = {
    "PlanMismatchError": "gradwire_compression",
    "Session": "gradwire.session",
    "attach": "gradwire.attachment",
    "checkpoint_entry": "gradwire.states",
    "load_state": "gradwire.states",
    "save_state": "gradwire.states",
}


def __getattr__(name: str) -> Any:
    """Import the part that `name` lives in."""
    if name not in _LAZY:
        raise AttributeError(f"module 'gradwire' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)
