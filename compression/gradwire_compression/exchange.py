"""The exchange: averages the buckets of one model under a plan that can change between two steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from gradwire_compression import residuals
from gradwire_compression.buckets import BucketBook, BucketShape, BucketView, pack
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.exact import exact_wire_bytes, start_exact
from gradwire_compression.collectives.lane import Lane
from gradwire_compression.collectives.nodes import check, flat_reason, open_groups
from gradwire_compression.errors import CompressionError, PlanError, StateError
from gradwire_compression.flush import Flush, mean_over_ranks
from gradwire_compression.lossy import LossyBucket
from gradwire_compression.observer import BucketTiming, GuardedObserver, Observer
from gradwire_compression.plan import Plan, check_optimizer
from gradwire_compression.prepared import Prepared, Ranks, Route
from gradwire_compression.trace import Trace

_META = torch.device("meta")


@dataclass(frozen=True)
class SwitchReport:
    """What a switch did on this rank."""

    # L2 norm of the residual that was thrown away, None if there was none or it was kept.
    residual_norm_dropped: float | None


class Exchange:
    """Averages one model's buckets over its group.

    Not thread-safe: everything but what futures do runs in the thread that runs backward.
    """

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, Tensor]],
        group: ProcessGroup | None,
        *,
        plan: Plan,
        optimizer_class: str | None,
        observer: Observer,
        clock: Callable[[], float] = time.perf_counter,
        lane_group: ProcessGroup | None = None,
        nodes: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make an exchange; every rank of the group must do so at the same point.

        Args:
            named_parameters: The model's parameters, the same names in the same order on every rank.
            group: The framework's own group, None for the default one; exact averages use it.
            plan: Equal on every rank.
            optimizer_class: As `optimizer_class_name` gives it, None if unknown.
            observer: Told of every step and bucket.
            clock: Monotonic, seconds.
            lane_group: A group of the same ranks that nobody else uses; None makes one.
            nodes: Ranks in `group` by node, equal on every rank; empty if unknown. Several nodes with equally many
                ranks, more than one, get the groups of a hierarchical exchange.

        Raises:
            PlanError: The plan is not acceptable here.
            CompressionError: No parameter requires a gradient, or `nodes` are not the ranks of `group`.
        """
        self._parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        if not self._parameters:
            raise CompressionError("no parameter of the model requires a gradient, so there is nothing to average")
        self._book = BucketBook({id(parameter): name for name, parameter in self._parameters.items()})
        self._group = group
        self.world_size = dist.get_world_size(group)
        self._optimizer_class = optimizer_class
        self._observer = GuardedObserver(observer)
        self._clock = clock
        if self.world_size == 1:
            lane_group = None
        elif lane_group is None:
            lane_group = compat.new_side_group(group)
        self._nodes = check(nodes, self.world_size)
        reason = flat_reason(self._nodes)
        node_groups = None if reason else open_groups(self._nodes, group)
        self._ranks = Ranks(lane_group, dist.get_rank(group), self.world_size, node_groups, reason)
        self._lane: Lane | None = None
        self._is_closed = False
        self._num_syncs = 0
        self._flush: Flush | None = None
        # Residuals of parameters whose bucket has not been seen since they were given up.
        self._homeless: dict[str, Tensor] = {}
        self._active = self.prepare(plan)

    @property
    def plan(self) -> Plan:
        """The active plan."""
        return self._active.plan

    @property
    def is_settling(self) -> bool:
        """Whether residuals of an earlier plan are still being added to the gradients."""
        return self._flush is not None

    @property
    def num_syncs(self) -> int:
        """Synchronised steps begun so far; in `begin_sync` the number of this step, from 1."""
        return self._num_syncs

    def prepare(self, plan: Plan) -> Prepared:
        """Validate `plan` here and allocate what it needs; the active plan is not touched.

        Buckets that were not seen yet are allocated when they are. The result can be dropped at any time.

        Raises:
            PlanError: One sentence that names what is wanted or the safe alternative.
            RuntimeError: Out of memory.
        """
        check_optimizer(plan, self._optimizer_class)
        if self._is_closed and plan.codec != "none":
            raise PlanError(f"{plan.codec} is not possible any more: the exchange is closed; use none")
        device = next(iter(self._parameters.values())).device
        prepared = Prepared(plan, self._parameters, self._book.shapes, self._ranks, device)
        if plan.codec != "none" and self._ranks.group is not None and self._lane is None:
            self._lane = Lane()
        return prepared

    def switch(self, prepared: Prepared, *, residuals: Literal["carry", "drop"]) -> SwitchReport:
        """Make `prepared` the active plan from this very step on.

        Call it only from `Observer.begin_sync`, at the same step on all ranks. With "carry", residuals go on under
        the new codec, and those of tensors that become exact are flushed into the next gradients, which takes
        several steps. With "drop" this step is plain averaging already.
        """
        held, warm_starts = self._take_residuals(), self._active.warm_starts.copies()
        self._active = prepared
        if residuals == "drop":
            return SwitchReport(_norm(held) if held else None)
        prepared.give(held)
        prepared.warm_starts.load(warm_starts)
        self._homeless = {name: held.pop(name) for name in list(held) if prepared.is_compressed(name)}
        if held:
            self._flush = self._begin_flush(held, is_partial=bool(prepared.buckets))
        return SwitchReport(None)

    def memory_bytes(self, plan: Plan) -> int:
        """Return the extra memory that `plan` takes on this rank, bytes.

        Before the first step the buckets are not known, and one bucket for each dtype is assumed.

        Raises:
            PlanError: The codec has no kernels for the model's device.
        """
        return self._weigh(plan).memory_bytes

    def route(self, plan: Plan) -> Route:
        """Return how gradients travel under `plan`, in one level or in two, and the bytes of a step.

        Before the first step the buckets are not known, and one bucket for each dtype is assumed.

        Raises:
            PlanError: The codec has no kernels for the model's device.
        """
        return self._weigh(plan).route()

    def layout_hash(self) -> int:
        """Return a number below 2**48 for the buckets of the last complete step, 0 before the first."""
        return self._book.hash

    def state_dict(self) -> dict[str, Any]:
        """Return residuals by parameter name, the plan and the step, as values that `weights_only` loads.

        Call it between steps. Residuals are copies, [shape of the parameter] float32 in gradient units, the owner's
        share folded in; they belong to this rank.
        """
        self._drain()
        held = {**self._active.peek(), **self._homeless, **(self._flush.owed if self._flush else {})}
        copies = {name: tensor.clone().view(self._parameters[name].shape) for name, tensor in held.items()}
        return {"residuals": copies, "plan": self.plan.to_dict(), "num_syncs": self._num_syncs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of the same model and rank, between steps; the active plan stays.

        Raises:
            StateError: A residual belongs to no parameter, or has another shape.
        """
        for name, tensor in state["residuals"].items():
            parameter = self._parameters.get(name)
            if parameter is None or parameter.shape != tensor.shape:
                wanted = "no such parameter" if parameter is None else f"shape {list(parameter.shape)}"
                raise StateError(f"the residual of {name} has shape {list(tensor.shape)}; wanted: {wanted}")
        self._take_residuals()
        held = {name: tensor.to(torch.float32).flatten() for name, tensor in state["residuals"].items()}
        self._homeless = {name: held.pop(name) for name in list(held) if self._active.is_compressed(name)}
        if held:
            self._flush = self._begin_flush(held, is_partial=True)
        self._num_syncs = int(state["num_syncs"])

    def close(self) -> None:
        """Average plainly from the next step on and end the Lane; all ranks must do so at the same step."""
        self._take_residuals()
        self._is_closed = True
        self._active = Prepared(Plan(), self._parameters, (), self._ranks, _META)
        if self._lane is not None:
            self._lane.close()
            self._lane = None
        # A group made here stays until the process group ends: torch would give the next one the same name in the
        # store, and its ranks would connect to addresses of the dead one.
        self._ranks = replace(self._ranks, group=None)

    def average(self, view: BucketView) -> Future[Tensor]:
        """Start averaging one bucket; the future holds the averaged buffer.

        Buckets come in the order of their index, on all ranks alike. The buffer must not be touched until the
        future is complete. A failure is raised by the future.
        """
        if view.index == 0:
            self._begin_sync()
        # What the observer did before anything was sent is not the bucket's time.
        ready = self._clock()
        shape = self._book.shape_of(view)
        bucket = self._bucket_for(shape, view.buffer)
        future = self._start_lossy(view, bucket, ready) if bucket else self._start_exact(view, shape, ready)
        if view.is_last:
            self._book.end_step(view.index + 1)
            self._observer.end_sync()
        return future

    def _begin_sync(self) -> None:
        self._num_syncs += 1
        self._observer.begin_sync()
        if self._flush is not None:
            self._flush.begin_step()
            if self._flush.is_done:
                self._observer.flushed(self._flush.num_steps, self._flush.norm)
                self._flush = None

    def _bucket_for(self, shape: BucketShape, buffer: Tensor) -> LossyBucket | None:
        """Return who averages the bucket on the Lane, None if it is averaged exactly."""
        if not self._active.is_built(shape):
            self._rebuild(shape, buffer)
        is_warming_up = self._num_syncs <= self.plan.warmup_steps
        return None if is_warming_up else self._active.buckets.get(shape.index)

    def _rebuild(self, shape: BucketShape, buffer: Tensor) -> None:
        """Allocate for a bucket that is new or holds other parameters than before; residuals follow their names."""
        # Shared buffers may have to grow, and earlier buckets of this step may be using them.
        self._drain()
        self._homeless.update(self._active.take(shape.index))
        is_dense = not buffer.is_sparse and buffer.is_contiguous() and shape.numel == buffer.numel()
        bucket = self._active.build(shape, is_dense)
        if bucket is not None:
            bucket.load(self._homeless)

    def _start_exact(self, view: BucketView, shape: BucketShape, ready: float) -> Future[Tensor]:
        buffer = view.buffer
        flush = self._flush if self._flush is not None and self._flush.touches(shape.slots) else None
        # What is flushed is added in float32, whatever the bucket's dtype.
        summed = buffer if flush is None else buffer.to(torch.float32)
        if flush is not None:
            flush.add(summed, shape.slots)
        work = start_exact(summed, self._group, self.world_size, shape.slots, view.kept)
        wire_bytes = exact_wire_bytes(summed.numel() * summed.element_size(), self.world_size)
        timing = self._timing(view, ready, wire_bytes)

        def finish(future: Future[list[Tensor]]) -> Tensor:
            result = future.value()[0]
            if flush is not None:
                flush.settle(result, shape.slots)
                result = buffer.copy_(result)
            self._observer.bucket_done(replace(timing, done=self._clock(), num_buckets=self._book.num_buckets))
            return result

        return work.get_future().then(finish)

    def _start_lossy(self, view: BucketView, bucket: LossyBucket, ready: float) -> Future[Tensor]:
        assert self._lane is not None
        flush, buffer, timing = self._flush, view.buffer, self._timing(view, ready, 0)

        def job() -> Tensor:
            trace = Trace(self._clock)
            outcome = bucket.average(buffer, flush, trace)
            done = self._clock()
            if outcome.nonfinite:
                self._observer.nonfinite(outcome.nonfinite)
            if not outcome.is_finite:
                self._observer.result_nonfinite()
            self._observer.bucket_done(
                replace(
                    timing,
                    done=done,
                    num_buckets=self._book.num_buckets,
                    codec=tuple(trace.intervals),
                    wire_bytes=outcome.wire_bytes,
                )
            )
            return buffer

        return self._lane.submit(job, f"{self.plan.codec}: averaging bucket {view.index}")

    def _timing(self, view: BucketView, ready: float, wire_bytes: int) -> BucketTiming:
        num_bytes = view.buffer.numel() * view.buffer.element_size()
        return BucketTiming(self._num_syncs, view.index, 0, ready, ready, (), num_bytes, wire_bytes)

    def _take_residuals(self) -> dict[str, Tensor]:
        """Give up every residual, whether with a bucket, homeless or in a flush, and return them by name."""
        self._drain()
        held = {**self._homeless, **self._active.take(), **(self._flush.owed if self._flush else {})}
        self._homeless, self._flush = {}, None
        return held

    def _begin_flush(self, owed: dict[str, Tensor], is_partial: bool) -> Flush:
        # Views would keep the memory of the tensors beside them.
        owed = {name: tensor.clone() if is_partial else tensor for name, tensor in owed.items()}
        return Flush(owed, self._agree)

    def _agree(self, value: float) -> float:
        group = self._ranks.group
        if group is None:
            return value
        return mean_over_ranks(value, lambda box: compat.start_all_reduce(box, group).wait(), self.world_size)

    def _drain(self) -> None:
        if self._lane is not None:
            self._lane.drain()

    def _weigh(self, plan: Plan) -> Prepared:
        shapes = self._book.shapes or self._assumed_shapes()
        return Prepared(plan, self._parameters, shapes, self._ranks, _META)

    def _assumed_shapes(self) -> list[BucketShape]:
        by_dtype: dict[torch.dtype, list[tuple[str, int]]] = {}
        for name, parameter in self._parameters.items():
            by_dtype.setdefault(parameter.dtype, []).append((name, parameter.numel()))
        return [BucketShape(index, dtype, pack(entries)) for index, (dtype, entries) in enumerate(by_dtype.items())]


def _norm(held: Mapping[str, Tensor]) -> float:
    return residuals.norm(held.values())
