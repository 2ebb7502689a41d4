"""The loss of a script that tells nobody: what it calls backward on."""

import functools
from typing import Any

import torch
from torch import Tensor


class BackwardLosses:
    """Notes every single number that `backward` is called on, from construction on and for the whole process.

    A loss that a GradScaler has multiplied counts as it was before.
    """

    def __init__(self) -> None:
        self._noted: list[Tensor] = []
        self._scaled: tuple[Tensor, Tensor] | None = None
        self._watch_backward()
        self._watch_scalers()

    def take(self) -> Tensor | None:
        """Return the mean of what was noted since the last call, on its device; None if nothing was."""
        noted, self._noted = self._noted, []
        return torch.stack(noted).mean() if noted else None

    def _watch_backward(self) -> None:
        backward: Any = Tensor.backward

        @functools.wraps(backward)
        def noting_backward(loss: Tensor, *arguments: Any, **options: Any) -> None:
            if loss.numel() == 1 and loss.is_floating_point():
                scaled, self._scaled = self._scaled, None
                value = scaled[1] if scaled is not None and scaled[0] is loss else loss
                self._noted.append(value.detach().reshape(()).float())
            backward(loss, *arguments, **options)

        Tensor.backward = noting_backward  # type: ignore[assignment, method-assign]

    def _watch_scalers(self) -> None:
        scale = torch.amp.GradScaler.scale

        @functools.wraps(scale)
        def noting_scale(scaler: torch.amp.GradScaler, outputs: Any) -> Any:
            scaled = scale(scaler, outputs)
            if isinstance(outputs, Tensor):
                self._scaled = (scaled, outputs.detach())
            return scaled

        torch.amp.GradScaler.scale = noting_scale  # type: ignore[assignment, method-assign]
