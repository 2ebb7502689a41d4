"""The exchange: averages the buckets of one model under a plan that can change between two steps."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from gradwire_compression.buckets import BucketShape, BucketView, pack
from gradwire_compression.collectives.exact import exact_wire_bytes, start_exact
from gradwire_compression.observer import BucketTiming, GuardedObserver, Observer
from gradwire_compression.plan import Plan, check_optimizer, hash_json

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SwitchReport:
    """What a switch did on this rank."""

    # L2 norm of the residual that was thrown away, None if there was none or it was kept.
    residual_norm_dropped: float | None


class Prepared:
    """A plan with all it needs allocated; dropping it frees that."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


class Exchange:
    """Averages one model's buckets over its group."""

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
    ) -> None:
        self._names = {id(parameter): name for name, parameter in named_parameters}
        self._group = group
        self.world_size = dist.get_world_size(group)
        self._optimizer_class = optimizer_class
        self._observer = GuardedObserver(observer)
        self._clock = clock
        self._shapes: dict[int, BucketShape] = {}
        self._num_syncs = 0
        self._num_buckets = 0
        self._layout_hash = 0
        self._active = self.prepare(plan)

    @property
    def plan(self) -> Plan:
        """The active plan."""
        return self._active.plan

    @property
    def is_settling(self) -> bool:
        """Whether residuals of an earlier plan are still being added to the gradients."""
        return False

    @property
    def num_syncs(self) -> int:
        """Synchronised steps begun so far; in `begin_sync` the number of this step, from 1."""
        return self._num_syncs

    def prepare(self, plan: Plan) -> Prepared:
        """Validate `plan` here and allocate what it needs; the active plan is not touched."""
        check_optimizer(plan, self._optimizer_class)
        return Prepared(plan)

    def switch(self, prepared: Prepared, *, residuals: Literal["carry", "drop"]) -> SwitchReport:
        """Make `prepared` the active plan; only from `Observer.begin_sync`, at the same step on all ranks."""
        self._active = prepared
        return SwitchReport(None)

    def memory_bytes(self, plan: Plan) -> int:
        """Return the extra memory that `plan` takes on this rank, bytes."""
        return 0

    def layout_hash(self) -> int:
        """Return a number below 2**48 for the buckets of the last complete step, 0 before the first."""
        return self._layout_hash

    def close(self) -> None:
        """Average uncompressed from the next step on; all ranks must do so at the same step."""
        self._active = Prepared(Plan())

    def average(self, view: BucketView) -> Future[Tensor]:
        """Start averaging one bucket; the future holds the averaged buffer."""
        ready = self._clock()
        if view.index == 0:
            self._num_syncs += 1
            self._observer.begin_sync()
        shape = self._shape_of(view)
        future = self._start_exact(view, shape, ready)
        if view.is_last:
            self._end_sync(view.index + 1)
        return future

    def _shape_of(self, view: BucketView) -> BucketShape:
        entries = [(self._names.get(id(parameter), "?"), parameter.numel()) for parameter in view.parameters]
        known = self._shapes.get(view.index)
        shape = BucketShape(view.index, view.buffer.dtype, pack(entries))
        if known != shape:
            self._shapes[view.index] = shape
        return shape

    def _end_sync(self, num_buckets: int) -> None:
        self._num_buckets = num_buckets
        for index in [index for index in self._shapes if index >= num_buckets]:
            del self._shapes[index]
        self._layout_hash = hash_json([self._shapes[index].describe() for index in range(num_buckets)])
        self._observer.end_sync()

    def _start_exact(self, view: BucketView, shape: BucketShape, ready: float) -> Future[Tensor]:
        num_bytes = view.buffer.numel() * view.buffer.element_size()
        timing: dict[str, Any] = {
            "step": self._num_syncs,
            "index": view.index,
            "ready": ready,
            "codec": (),
            "logical_bytes": num_bytes,
            "wire_bytes": exact_wire_bytes(num_bytes, self.world_size),
        }
        work = start_exact(view.buffer, self._group, self.world_size, shape.slots, view.kept)

        def finish(future: Future[list[Tensor]]) -> Tensor:
            result = future.value()[0]
            done = self._clock()
            self._observer.bucket_done(BucketTiming(**timing, num_buckets=self._num_buckets, done=done))
            return result

        return work.get_future().then(finish)
