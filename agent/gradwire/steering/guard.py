"""The guard: rolls back without the server when a number says that the run is breaking."""

import math
import threading
from collections.abc import Callable

# A single overflow is what GradScaler is for; three in a row are not.
NONFINITE_STEPS = 3


class Guard:
    """Watches losses and averaged gradients while compression is on.

    Args:
        is_armed: Says whether there is anything to roll back from.
        ignores: Says whether a step is uncompressed for a moment, so that it tells nothing of the codec.
        on_breach: Called once per breach with the sentence that says why.

    Thread-safe: losses come from the recorder's thread, gradients from the exchange's.
    """

    def __init__(
        self,
        *,
        is_armed: Callable[[], bool],
        ignores: Callable[[int], bool] = lambda step: False,
        on_breach: Callable[[str], None],
    ) -> None:
        self._is_armed = is_armed
        self._ignores = ignores
        self._on_breach = on_breach
        self._lock = threading.Lock()
        self._counts = {"loss": 0, "averaged gradient": 0}

    def observe_loss(self, step: int, value: float) -> None:
        """Note the loss of `step`."""
        self._observe("loss", step, math.isfinite(value))

    def observe_gradient(self, step: int, *, is_finite: bool) -> None:
        """Note whether the averaged gradient of `step` is finite."""
        self._observe("averaged gradient", step, is_finite)

    def reset(self) -> None:
        """Forget what was seen, for after a switch."""
        with self._lock:
            self._counts = dict.fromkeys(self._counts, 0)

    def _observe(self, what: str, step: int, is_finite: bool) -> None:
        if self._ignores(step):
            return
        with self._lock:
            self._counts[what] = 0 if is_finite else self._counts[what] + 1
            is_breach = self._counts[what] == NONFINITE_STEPS and self._is_armed()
        if is_breach:
            self._on_breach(f"the {what} was not finite for {NONFINITE_STEPS} steps in a row, up to step {step}")
