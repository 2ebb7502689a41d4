"""The session of a process that only imports the training script: it does nothing."""

import contextlib
import logging
import multiprocessing
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from gradwire.endings import Status
from gradwire.session import Session
from gradwire.transport.reporter import DeliverySummary

log = logging.getLogger("gradwire")


def is_importing_script() -> bool:
    """Return whether this process is a spawned worker that imports the main script to find its function there."""
    # Python's own mark for that phase; what it forbids then is to start further processes.
    return bool(getattr(multiprocessing.current_process(), "_inheriting", False))


class IdleSession(Session):
    """Takes every call and does nothing, so that workers can import a script that attaches at its top."""

    def __init__(self) -> None:
        self.summary = None
        log.warning(
            "gradwire: attached in a worker process that only imports the script; nothing is reported from here. "
            "Attach below `if __name__ == '__main__':`"
        )

    @property
    def run_id(self) -> str:
        """Empty: no run is made."""
        return ""

    @property
    def codec(self) -> str:
        """Nothing is exchanged here."""
        return "none"

    @property
    def current_step(self) -> int:
        """No step is counted."""
        return 1

    def step(self, *, loss: Any = None, samples: int = 0, tokens: int = 0) -> None:
        """Do nothing."""

    def evaluate(self, **metrics: float) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def pause(self, reason: str = "") -> Iterator[None]:
        """Do nothing."""
        yield

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: there is no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""

    def rollback(self, reason: str = "") -> None:
        """Do nothing."""

    def close(self, *, status: Status = "finished", exception: str = "") -> DeliverySummary | None:
        """Do nothing."""
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        """Do nothing."""
