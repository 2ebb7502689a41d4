"""The demo's one progress line."""

import sys
from collections import deque
from statistics import mean
from typing import Any

SMOOTHED_STEPS = 5
# Where output is not a terminal, one line for this many steps is enough for a log.
LOG_STEPS = 10


class Progress:
    """Rewrites one line on a terminal, and writes now and then elsewhere."""

    def __init__(self) -> None:
        self._is_terminal = sys.stdout.isatty()
        self._seconds: deque[float] = deque(maxlen=SMOOTHED_STEPS)
        self._is_line_open = False

    def show(self, line: dict[str, Any], view: dict[str, Any] | None) -> None:
        """Show a step as rank 0 reported it, and the exposed share that the run's page shows by now."""
        self._seconds.append(line["seconds"])
        if not self._is_terminal and line["step"] % LOG_STEPS:
            return
        share = view and view["exposed_share"]["value"]
        text = "  ".join(
            (
                f"step {line['step']}",
                f"loss {line['loss']:.3f}",
                f"{mean(self._seconds) * 1000:.0f} ms/step",
                "exposed ?" if share is None else f"exposed {share:.0%}",
                line["codec"],
            )
        )
        if self._is_terminal:
            sys.stdout.write(f"\r\x1b[K{text}")
            sys.stdout.flush()
            self._is_line_open = True
        else:
            self.say(text)

    def say(self, text: str) -> None:
        """Write a line that stays."""
        if self._is_line_open:
            sys.stdout.write("\n")
            self._is_line_open = False
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
