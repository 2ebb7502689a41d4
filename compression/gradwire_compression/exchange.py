"""The exchange: averages the buckets of one model under a plan that can change between two steps."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.futures import Future

from gradwire_compression.buckets import BucketBook, BucketShape, BucketView, one_for_each_dtype
from gradwire_compression.collectives.lane import Lane, lane_for
from gradwire_compression.costs import Links
from gradwire_compression.errors import CompressionError, PlanError
from gradwire_compression.findings import Findings
from gradwire_compression.hold import Hold
from gradwire_compression.loss_scale import LossScale
from gradwire_compression.lossy import LossyBucket
from gradwire_compression.match import Matches
from gradwire_compression.memory_order import as_flats, as_parameters, permuted
from gradwire_compression.observer import GuardedObserver, Observer, finisher
from gradwire_compression.owed import Owed
from gradwire_compression.plain import average_plainly, average_unseen
from gradwire_compression.plan import Plan, check_optimizer
from gradwire_compression.prepared import Prepared, SwitchReport
from gradwire_compression.pricing import Pricing, measure_links
from gradwire_compression.ranks import open_ranks
from gradwire_compression.relay import Relay, relay_to
from gradwire_compression.reports import Explanation, explain
from gradwire_compression.residuals import gather_owners, norm
from gradwire_compression.resuming import buckets_of, check_together, powers_of
from gradwire_compression.room import check_room
from gradwire_compression.state import State, seal
from gradwire_compression.trace import Trace

_META = torch.device("meta")


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
        loss_scale: Callable[[], float] | None = None,
    ) -> None:
        """Make an exchange; every rank of the group must do so at the same point.

        Args:
            named_parameters: The model's parameters, the same names in the same order on every rank.
            group: The framework's own group, None for the default one; exact averages use it.
            plan: Equal on every rank.
            optimizer_class: As `optimizer_class_name` gives it, None if unknown.
            observer: Told of every step and bucket.
            clock: Monotonic, seconds; for CUDA models it may return events instead, recorded on the current stream.
            lane_group: A group of the same ranks that nobody else uses; None makes one where there are several.
            nodes: Ranks in `group` by node, equal on every rank; empty if unknown. Several nodes with equally many
                ranks, more than one, get the groups of a hierarchical exchange.
            loss_scale: Returns what the loss is multiplied by, equal on every rank; None if it is not scaled.

        Raises:
            PlanError: The plan is not acceptable here.
            CompressionError: No parameter requires a gradient, or `nodes` are not the ranks of `group`.
        """
        self._parameters = {name: parameter for name, parameter in named_parameters if parameter.requires_grad}
        if not self._parameters:
            raise CompressionError("no parameter of the model requires a gradient, so there is nothing to average")
        self._device = next(iter(self._parameters.values())).device
        self._book = BucketBook({id(parameter): name for name, parameter in self._parameters.items()})
        self._group = group
        self._optimizer_class = optimizer_class
        self._observer = GuardedObserver(observer)
        self._clock = clock
        self._ranks = open_ranks(group, lane_group, nodes, self._device)
        self.world_size = self._ranks.world_size
        self._lane: Lane | None = None
        self._findings, self._matches = Findings(self._observer), Matches(self._observer)
        self._is_closed, self._num_syncs, self._hold = False, 0, Hold()
        self._owed = Owed(self._parameters, self._ranks, self._observer)
        self._loss_scale = LossScale(loss_scale)
        # Takes the first step after a state was loaded.
        self._relay: Relay | None = None
        self._pricing = Pricing(None, self._ranks)
        self._active = self.prepare(plan)

    @property
    def plan(self) -> Plan:
        """The active plan."""
        return self._active.plan

    @property
    def is_settling(self) -> bool:
        """Whether residuals of an earlier plan are still being added to the gradients."""
        return self._owed.flush is not None

    @property
    def is_held(self) -> bool:
        """Whether this step is averaged exactly though the plan has a codec, because of `hold`."""
        return self._hold.covers(self._num_syncs)

    def hold(self, num_steps: int) -> None:
        """Average exactly in this and the next steps, `num_steps` in all; then the codec goes on where it was.

        Call it as `switch`, which ends the hold. Residuals are neither added nor dropped.
        """
        self._hold.begin(self._num_syncs, num_steps)

    def sample_match(self) -> None:
        """Have `Observer.matched` told of this step's gradient match, unless it is exact; call it as `hold`."""
        self._matches.ask(self._num_syncs)

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
        self._ranks.check_order(plan.codec)
        if self._is_closed and plan.codec != "none":
            raise PlanError(f"{plan.codec} is not possible any more: the exchange is closed; use none")
        check_room(plan.codec, self.weigh(plan).memory_bytes, self._ranks)
        prepared = Prepared(plan, self._parameters, self._book.shapes, self._ranks, self._device)
        self._pricing.sample(prepared)
        if prepared.codec is not None and self._lane is None:
            self._lane = lane_for(self._device)
        if self._lane is not None:
            self._lane.follow()
        return prepared

    def switch(self, prepared: Prepared, *, residuals: Literal["carry", "drop"]) -> SwitchReport:
        """Make `prepared` the active plan from this very step on.

        Call it only from `Observer.begin_sync`, at the same step on all ranks. With "carry", residuals go on under
        the new codec, and those of tensors that become exact are flushed into the next gradients, which takes
        several steps. With "drop" this step is plain averaging already.
        """
        held, warm_starts = self._take_residuals(), self._active.warm_starts.copies()
        self._pricing.settle(prepared)
        self._active = prepared
        if residuals == "drop":
            return SwitchReport(norm(held.values()) if held else None)
        prepared.warm_starts.load(warm_starts)
        prepared.give(held, {})
        self._owed.go_on_with(held, prepared, is_partial=bool(prepared.buckets))
        return SwitchReport(None)

    def weigh(self, plan: Plan) -> Prepared:
        """Return `plan` without memory, to ask for `memory_bytes` and `route()` with every bucket compressed.

        Before the first step the buckets are not known, and one bucket for each dtype is assumed.

        Raises:
            PlanError: The codec has no kernels for the model's device.
        """
        shapes = self._book.shapes or one_for_each_dtype(self._parameters)
        return Prepared(plan, self._parameters, shapes, self._ranks, _META)

    def decide_by(self, links: Links | None = None) -> None:
        """From now on compress only buckets that are faster for it; between steps, at the same point on all ranks.

        Until then all are that can be. `links` are equal on all ranks; None measures them, as `measure_links` says.
        """
        if self._ranks.group is not None:
            self._pricing = Pricing(links or measure_links(self._ranks), self._ranks)
            self._pricing.sample(self._active)
            self._owed.move_out(self._active, 0)
            self._pricing.settle(self._active)

    def explain(self) -> Explanation:
        """Return how each parameter's gradient travels at present; any thread."""
        return explain(self._active, self._parameters)

    def layout_hash(self) -> int:
        """Return a number below 2**48 for the buckets of the last complete step, 0 before the first."""
        return self._book.hash

    def owed(self) -> dict[str, Tensor]:
        """Return what this rank's error feedback owes to each parameter, its share as an owner included.

        Copies, [shape of the parameter] float32 in gradient units; call it between steps.
        """
        self._drain()
        return as_parameters(self._owed.with_buckets(self._active), self._parameters)

    def state_dict(self) -> State:
        """Return what this rank needs to go on as if nothing had happened, as values that `weights_only` loads.

        Call it between steps. "residuals" are copies, [shape of the parameter] float32 in gradient units times the
        loss scale. A flush in progress is saved as residuals, and begins anew.
        """
        self._drain()
        held = self._owed.worker_with_buckets(self._active)
        # These are the same on every rank; one of them saves them.
        waiting = self._owed.waiting.owner_pieces() if self._ranks.rank == 0 else {}
        shapes = self._relay.shapes if self._relay else self._book.shapes
        return seal(
            {
                "plan": self.plan.to_dict(),
                "num_syncs": self._num_syncs,
                "loss_scale": self._loss_scale.value,
                "rank": self._ranks.rank,
                "world_size": self.world_size,
                "nodes": self._ranks.by_node,
                "buckets": [shape.describe() for shape in shapes],
                "residuals": as_parameters(held, self._parameters),
                "owner_residuals": {**self._active.owner_pieces(), **waiting},
                **self._active.agreements(),
                "permuted": permuted(self._parameters),
            }
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from this rank's state of the same model, under the state's plan; between steps, on all ranks.

        Raises:
            StateError: A state is damaged, does not fit the model, or was not saved together with the others'; all
                ranks raise it, and nothing was changed.
            PlanError: The state's plan is not acceptable here.
        """
        check_together(state, self._parameters, self._ranks, self._ranks.total)
        plan = Plan.from_dict(state["plan"])
        prepared = self._active if plan == self.plan else self.prepare(plan)
        self._take_residuals()
        self._pricing.settle(prepared)
        self._active = prepared
        held = as_flats(state["residuals"], self._parameters)
        names = state["owner_residuals"] if self._ranks.group is None else prepared.owned_names()
        owners = gather_owners(state["owner_residuals"], names, self._parameters, self._ranks.total)
        self._owed.waiting.owners = owners
        prepared.warm_starts.load(state["warm_starts"])
        # Buckets are allocated anew when they are seen, and take over what waits for them.
        prepared.drop()
        prepared.powers = powers_of(state, self._ranks.by_node)
        self._relay = relay_to(buckets_of(state, self._parameters), self._parameters, self._average)
        self._owed.go_on_with(held, prepared, is_partial=True)
        self._num_syncs, self._loss_scale.value = int(state["num_syncs"]), state["loss_scale"]

    def close(self) -> None:
        """Average plainly from the next step on and end the Lane; all ranks must do so at the same step."""
        self._take_residuals()
        self._is_closed = True
        self._active = Prepared(Plan(), self._parameters, (), self._ranks, _META)
        if self._lane is not None:
            self._lane.close()
            self._lane = None
        self._findings.tell(waits=True)
        # A group made here stays until the process group ends: torch would give the next one the same name in the
        # store, and its ranks would connect to addresses of the dead one.
        self._ranks = self._owed.ranks = replace(self._ranks, group=None)

    def average(self, view: BucketView) -> Future[Tensor]:
        """Start averaging one bucket; the future holds the averaged buffer.

        Buckets come in the order of their index, on all ranks alike. The buffer must not be touched until the
        future is complete. A failure is raised by the future.
        """
        if (relay := self._relay) is None:
            return self._average(view)
        future = relay.average(view)
        self._relay = None if relay.is_done else relay
        return future

    def _average(self, view: BucketView) -> Future[Tensor]:
        if view.index == 0:
            self._begin_sync()
        if self._observer.watches_buckets:
            self._observer.bucket_ready(view)
        elif self._active.codec is None and self._owed.flush is None and view.kept is None:
            future = average_unseen(view, self._group, self.world_size)
            if view.is_last:
                self._observer.end_sync()
            return future
        # What the observer did before anything was sent is not the bucket's time.
        ready = self._clock()
        shape = self._book.shape_of(view)
        bucket = self._bucket_for(shape, view.buffer)
        future = self._start_lossy(view, bucket, ready) if bucket else self._start_exact(view, shape, ready)
        if view.is_last:
            self._book.end_step(view.index + 1)
            self._observer.end_sync()
            if self._matches.wants(self._num_syncs) and self._lane is not None:
                self._lane.submit(self._matches.finishing(self.plan.codec, self._ranks), "gradient match")
        return future

    def _begin_sync(self) -> None:
        # A sample of the step before uses the group that the observer's switch may use.
        self._matches.tell(self._drain if self._matches.wants(self._num_syncs) else None)
        self._num_syncs += 1
        self._observer.begin_sync()
        if (factor := self._loss_scale.follow()) != 1:
            self._active.rescale(factor)
            self._owed.rescale(factor)
        self._owed.begin_step()

    def _bucket_for(self, shape: BucketShape, buffer: Tensor) -> LossyBucket | None:
        """Return who averages the bucket on the Lane, None if it is averaged exactly."""
        if not self._active.is_built(shape):
            self._rebuild(shape, buffer)
        is_exact = self.is_held or self._num_syncs <= self.plan.warmup_steps
        return None if is_exact else self._active.buckets.get(shape.index)

    def _rebuild(self, shape: BucketShape, buffer: Tensor) -> None:
        """Allocate for a bucket that is new or holds other parameters than before; residuals follow their names."""
        # Shared buffers may have to grow, and earlier buckets of this step may be using them.
        self._drain()
        self._owed.move_out(self._active, shape.index)
        is_dense = not buffer.is_sparse and buffer.is_contiguous() and shape.numel == buffer.numel()
        if (bucket := self._active.build(shape, is_dense)) is not None:
            bucket.load(self._owed.waiting.worker, self._owed.waiting.owners)
        else:
            self._owed.flush_exact(self._active, is_partial=True)

    def _start_exact(self, view: BucketView, shape: BucketShape, ready: float) -> Future[Tensor]:
        slots, finish = shape.slots, self._finishing(view, ready)
        return average_plainly(view, slots, self._owed.flush, self._group, self.world_size, finish)

    def _start_lossy(self, view: BucketView, bucket: LossyBucket, ready: float) -> Future[Tensor]:
        assert self._lane is not None
        flush, buffer, finish = self._owed.flush, view.buffer, self._finishing(view, ready)
        is_sampled, num_buckets = self._matches.wants(self._num_syncs), self._book.num_buckets

        def job() -> Tensor:
            trace = Trace(self._clock)
            if is_sampled:
                with trace.measure("encode"):
                    self._matches.begin(bucket, buffer, num_buckets)
            outcome = bucket.average(buffer, flush, trace)
            finish(outcome.wire_bytes, trace.intervals)
            if is_sampled:
                self._matches.end(buffer)
            self._findings.add(outcome)
            return buffer

        return self._lane.submit(job, f"{self.plan.codec}: averaging bucket {view.index}")

    def _finishing(self, view: BucketView, ready: float) -> Callable[..., None]:
        bucket = self._num_syncs, view.index, view.buffer.numel() * view.buffer.element_size()
        return finisher(self._observer, self._clock, lambda: self._book.num_buckets, bucket, ready)

    def _take_residuals(self) -> dict[str, Tensor]:
        """Give up every residual, whether with a bucket, waiting for one or in a flush, and return them by name."""
        self._drain()
        self._hold.end()
        return self._owed.take(self._active)

    def _drain(self) -> None:
        if self._lane is not None:
            self._lane.drain()
        self._findings.tell()
