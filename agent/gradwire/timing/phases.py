"""Marks the phases of the training thread: hooks on the model, the autograd engine and the optimizer."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Variable
from torch.utils._pytree import tree_leaves

from gradwire.timing.clock import Clock, Stamp
from gradwire.timing.trace import Phase, SyncTrace

# Exchanges kept while nobody calls `session.step()`.
_MAX_UNCLAIMED = 1000


class Phases:
    """Collects the marks of the step in progress.

    `forward` lasts from the call of the model to the start of its backward pass, the loss included; where nothing
    is differentiated it ends with the call. `tail` is what follows the last gradient until the next mark.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.marks: list[tuple[Phase, Stamp]] = [("data_wait", clock.stamp())]
        self.syncs: list[SyncTrace] = []
        # Whether the step in progress is traced; of others only the length and the pauses are noted.
        self.is_traced = True
        # Pauses may lie inside each other: a framework has its own inside the script's.
        self._num_pauses = 0
        self._is_backward = False
        # Whether the last exchange was outside any backward pass, only for the sake of other ranks.
        self.is_shadow = False

    def begin(self, phase: Phase) -> None:
        """Say that `phase` begins now; inside a pause everything belongs to the pause."""
        if self.is_traced and not self.is_paused:
            self.marks.append((phase, self._clock.stamp()))

    @property
    def is_paused(self) -> bool:
        """Whether everything belongs to a pause."""
        return self._num_pauses > 0

    def pause(self) -> None:
        """Begin a pause."""
        if not self.is_paused:
            self.marks.append(("pause", self._clock.stamp()))
        self._num_pauses += 1

    def resume(self) -> None:
        """End the innermost pause; what follows the outermost is other work until a hook says more."""
        self._num_pauses = max(0, self._num_pauses - 1)
        if self.is_paused:
            return
        self.marks.append(("other" if self.is_traced else "untraced", self._clock.stamp()))

    def begin_sync(self, number: int) -> SyncTrace:
        """Open the trace of exchange `number`; called from the hook of the first bucket."""
        # Where the model's outputs hide their tensors, this is the first sign of the pass.
        self.begin_backward()
        if len(self.syncs) >= _MAX_UNCLAIMED:
            self.take()
        self.syncs.append(SyncTrace(number, self.is_traced))
        return self.syncs[-1]

    def take(self, *, traces_next: bool = True) -> tuple[list[tuple[Phase, Stamp]], list[SyncTrace], Stamp]:
        """Hand over the step's marks and exchanges, and begin the next step at the same stamp.

        Args:
            traces_next: Whether the next step is traced, the same on all ranks.
        """
        end = self._clock.stamp()
        marks, syncs = self.marks, self.syncs
        self.is_traced = traces_next
        first: Phase = "pause" if self.is_paused else "data_wait" if traces_next else "untraced"
        self.marks, self.syncs = [(first, end)], []
        return marks, syncs, end

    def begin_backward(self) -> None:
        """Mark the start of a backward pass and have its end marked; once per pass, inside it.

        The autograd engine runs the callback after the last node of the pass and before the model waits for its
        buckets, whose own callback is queued later.
        """
        if self._is_backward:
            return
        self._is_backward, self.is_shadow = True, False
        self.begin("backward")
        try:
            Variable._execution_engine.queue_callback(self._end_of_backward)
        except RuntimeError:
            # Join's shadow pass exchanges buckets outside any backward pass.
            self.is_shadow = True
            self._end_of_backward()

    def _end_of_backward(self) -> None:
        self._is_backward = False
        if not self.is_traced:
            return
        stamp = self._clock.stamp()
        if self.syncs and self.syncs[-1].end_of_backward is None:
            self.syncs[-1].end_of_backward = stamp
            self._append("tail", stamp)
        else:
            # Nothing was exchanged in this pass: gradients are accumulated and the loader comes next.
            self._append("data_wait", stamp)

    def _append(self, phase: Phase, stamp: Stamp) -> None:
        if not self.is_paused:
            self.marks.append((phase, stamp))


class InertHook:
    """A module or optimizer hook that pickles and copies to nothing, so `torch.save(ddp)` keeps working."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *args: Any) -> None:
        """Run the hook; what it returns never replaces inputs or outputs."""
        self._function(*args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return nothing

    def __reduce__(self) -> Any:
        return (_return_nothing, ())


class _Mark(InertHook):
    """Begins a phase; of a step that is not traced it costs a call and no more."""

    def __init__(self, phases: Phases, phase: Phase) -> None:
        self._phases, self._phase = phases, phase

    def __call__(self, *_: Any) -> None:
        if self._phases.is_traced:
            self._phases.begin(self._phase)


def nothing(*args: Any) -> None:
    """What a copied or loaded hook does."""


def _return_nothing() -> Any:
    return nothing


def install(phases: Phases, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> list[Any]:
    """Hook `module` and `optimizer`; returns the handles that take the hooks away again."""

    def after_forward(_module: nn.Module, _args: Any, output: Any) -> None:
        if not phases.is_traced:
            return
        tensors = [output] if isinstance(output, Tensor) else _tensors(output)
        leaves = [leaf for leaf in tensors if leaf.requires_grad and leaf.grad_fn is not None]
        if not (leaves and torch.is_grad_enabled()):
            phases.begin("other")
            return
        for leaf in leaves:
            leaf.register_hook(before_backward)

    def before_backward(_gradient: Tensor) -> None:
        phases.begin_backward()

    handles: list[Any] = [
        module.register_forward_pre_hook(_Mark(phases, "forward")),
        module.register_forward_hook(InertHook(after_forward)),
    ]
    if optimizer is not None:
        handles.append(optimizer.register_step_pre_hook(_Mark(phases, "optimizer")))
        handles.append(optimizer.register_step_post_hook(_Mark(phases, "other")))
    return handles


def _tensors(output: Any) -> Iterator[Tensor]:
    return (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
