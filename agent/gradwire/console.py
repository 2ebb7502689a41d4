"""Lines on the console that leave progress bars whole."""

import contextlib
import logging
import sys
from typing import Any

_LOGGERS = ("gradwire", "gradwire_compression")


def say(text: str) -> None:
    """Write one line to stderr, above the bars that tqdm draws there; silent above the level WARNING."""
    if logging.getLogger("gradwire").isEnabledFor(logging.WARNING):
        _write(f"gradwire: {text}")


def set_up() -> None:
    """Have warnings of ours written like that too, as long as the program has no logging of its own."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(handler, _BesideBars) for handler in logger.handlers):
            logger.addHandler(_BesideBars(logging.WARNING))


class _BesideBars(logging.Handler):
    """Stands in for the handler of last resort, which writes into the middle of a bar."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the message, unless another handler does."""
        others = [*logging.getLogger().handlers, *logging.getLogger(record.name.partition(".")[0]).handlers]
        if all(other is self for other in others):
            _write(self.format(record))


def _write(text: str) -> None:
    # A console that is gone is no reason to stop training.
    with contextlib.suppress(OSError, ValueError):
        if bars := _bars():
            bars.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)


def _bars() -> Any:
    """Return tqdm's class if the program has bars on the screen, else None; all kinds of bars share its list."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return tqdm if tqdm is not None and getattr(tqdm, "_instances", None) else None
