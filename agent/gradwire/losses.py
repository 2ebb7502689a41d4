"""Losses as training hands them over: numbers at once, device tensors read when the device has passed them."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger("gradwire")


class Losses:
    """Keeps (step, loss, weight) until they are reported.

    Args:
        observe: Called with step and value of every loss as soon as it can be read.
    """

    def __init__(self, observe: Callable[[int, float], None]) -> None:
        self._observe = observe
        self._lock = threading.Lock()
        self._ready: list[tuple[int, float, float]] = []
        self._pending: deque[tuple[int, Tensor, torch.cuda.Event, float]] = deque()
        self._has_complained = False

    def note(self, step: int, loss: Any, weight: float) -> None:
        """Take the loss of `step`: a number or a tensor of one element; never synchronises the device."""
        if isinstance(loss, Tensor):
            if loss.numel() != 1:
                self._complain(f"loss has {loss.numel()} elements; wanted: one")
                return
            if loss.is_cuda:
                self._note_later(step, loss, weight)
                return
            # Copies the number out without a node of the graph, and without the time that `detach` takes.
            loss = loss.item()
        self._take(step, float(loss), weight)

    def drain(self) -> tuple[list[int], list[float], list[float]]:
        """Return steps, values and weights of the losses that are known by now, each once."""
        while self._pending and self._pending[0][2].query():
            step, value, _, weight = self._pending.popleft()
            self._take(step, float(value), weight)
        with self._lock:
            ready, self._ready = self._ready, []
        return [step for step, _, _ in ready], [value for _, value, _ in ready], [weight for _, _, weight in ready]

    def _note_later(self, step: int, loss: Tensor, weight: float) -> None:
        pinned = torch.empty((), dtype=torch.float32, pin_memory=True)
        pinned.copy_(loss.detach().reshape(()), non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._pending.append((step, pinned, event, weight))

    def _take(self, step: int, value: float, weight: float) -> None:
        with self._lock:
            self._ready.append((step, value, weight))
        self._observe(step, value)

    def _complain(self, message: str) -> None:
        if not self._has_complained:
            self._has_complained = True
            log.warning("gradwire: %s; this loss is not recorded", message)
