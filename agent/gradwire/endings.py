"""How training ends, as far as its own process can tell: what the session says last.

Nothing here touches a signal handler that somebody set. SIGTERM keeps its effect: by default the process is gone at
once, and what the spool holds is delivered by the next attempt or by `gradwire sync`.
"""

import atexit
import contextlib
import functools
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.util import Finalize
from types import FrameType
from typing import Any, Literal, NoReturn

Status = Literal["finished", "failed", "interrupted"]

# What shells and launchers call an exit by SIGINT and SIGTERM.
_SIGNAL_CODES = (128 + signal.SIGINT, 128 + signal.SIGTERM)

# How `sys.exit` was called last; the exception itself is gone when exit hooks run.
_exits: list[tuple[Status, str]] = []

# Interrupts of a process that multiprocessing started; see `_note_interrupts`.
_interrupts: list[int] = []


def status_of(error: BaseException | None) -> tuple[Status, str]:
    """Return the status and the exception's type for what ends training; None is its proper end.

    A process that leaves by `sys.exit(1)` while it handles an exception failed with that exception.
    """
    if error is None:
        return "finished", ""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", type(error).__name__
    if not isinstance(error, SystemExit):
        return "failed", type(error).__name__
    if error.code in (None, 0):
        return "finished", ""
    if error.code in _SIGNAL_CODES:
        return "interrupted", ""
    return status_of(error.__context__) if error.__context__ is not None else ("failed", "SystemExit")


class AtExit:
    """Closes a session that the script leaves open, once, when its process ends."""

    def __init__(self, close: Callable[[Status, str], object]) -> None:
        """Wait for the end.

        Args:
            close: Called with how the process ends.
        """
        self._close = close
        atexit.register(self._at_exit)
        _note_exits()
        self._finalizer: Finalize | None = None
        if multiprocessing.parent_process() is not None:
            # Children of multiprocessing end before `atexit`, and what ends them is still in flight then.
            self._finalizer = Finalize(None, self._at_end_of_child, exitpriority=100)
            _note_interrupts()

    def cancel(self) -> None:
        """Do nothing at the end: the session is closed."""
        atexit.unregister(self._at_exit)
        if self._finalizer is not None:
            self._finalizer.cancel()

    def _at_exit(self) -> None:
        # In a notebook or shell the last error is that of a cell which was typed again since.
        error = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._end(*(_exits[-1] if error is None and _exits else status_of(error)))

    def _at_end_of_child(self) -> None:
        error = sys.exc_info()[1]
        self._end(*status_of(KeyboardInterrupt() if error is None and _interrupts else error))

    def _end(self, status: Status, exception: str) -> None:
        # A second Ctrl-C means now; the traceback of the first one stays the last thing on stderr.
        with contextlib.suppress(KeyboardInterrupt):
            self._close(status, exception)


def _note_exits() -> None:
    """Remember how `sys.exit` is called, which works as before."""
    exit_ = sys.exit
    if getattr(exit_, "is_noting", False):
        return

    @functools.wraps(exit_)
    def note_and_exit(code: Any = None, /) -> NoReturn:
        error = SystemExit(code)
        error.__context__ = sys.exc_info()[1]
        _exits.append(status_of(error))
        exit_(code)

    note_and_exit.is_noting = True  # type: ignore[attr-defined]
    sys.exit = note_and_exit


def _note_interrupts() -> None:
    """Remember interrupts, which `torch.multiprocessing` swallows on their way; leave other handlers alone."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _note_and_raise)


def _note_and_raise(number: int, frame: FrameType | None) -> None:
    _interrupts.append(number)
    signal.default_int_handler(number, frame)
