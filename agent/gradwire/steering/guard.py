"""The guard: rolls back without the server when a number says that the run is breaking."""

import math
import threading
from collections.abc import Callable, Iterable

from gradwire.steering.rules import MatchDrop, Nonfinite, Rule, Spike


class Guard:
    """Watches losses, averaged gradients and the gradient match while compression is on.

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
        self._of_loss: tuple[Rule, ...] = (Nonfinite("loss"), Spike())
        self._of_gradient: tuple[Rule, ...] = (Nonfinite("averaged gradient"),)
        self._of_match: tuple[Rule, ...] = (MatchDrop(),)

    def observe_loss(self, step: int, value: float) -> None:
        """Note the loss of `step`."""
        self._observe(self._of_loss, step, value)

    def observe_gradient(self, step: int, *, is_finite: bool) -> None:
        """Note whether the averaged gradient of `step` is finite."""
        self._observe(self._of_gradient, step, 0.0 if is_finite else math.nan)

    def observe_match(self, step: int, cosine: float) -> None:
        """Note the gradient match of `step`, finite."""
        self._observe(self._of_match, step, cosine)

    def reset(self) -> None:
        """Forget what a switch makes void."""
        with self._lock:
            for rule in (*self._of_loss, *self._of_gradient, *self._of_match):
                rule.begin_epoch()

    def _observe(self, rules: Iterable[Rule], step: int, value: float) -> None:
        if self._ignores(step):
            return
        with self._lock:
            reasons = [reason for rule in rules if (reason := rule.observe(step, value))]
        if reasons and self._is_armed():
            for reason in reasons:
                self._on_breach(reason)
