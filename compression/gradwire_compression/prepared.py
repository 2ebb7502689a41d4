"""A plan with all it needs allocated: codec, buffers, and residuals of the buckets known so far."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression import residuals
from gradwire_compression.buckets import BucketShape, Slot
from gradwire_compression.codecs import registry
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.base import LossyCollective
from gradwire_compression.collectives.cast import Cast
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.collectives.hierarchical import Hierarchical, is_divisible
from gradwire_compression.collectives.low_rank import LowRank
from gradwire_compression.collectives.power import AgreedPower, Powers, known_powers
from gradwire_compression.collectives.two_phase import TwoPhase
from gradwire_compression.costs import Codec, Costs, Estimate, Line
from gradwire_compression.lossy import LossyBucket
from gradwire_compression.matrices import WarmStarts, matrix_of
from gradwire_compression.plan import EXACT, Plan
from gradwire_compression.ranks import Ranks
from gradwire_compression.scratch import Scratch
from gradwire_compression.state import Pieces


@dataclass(frozen=True)
class Route:
    """How gradients travel under a plan."""

    # Why all ranks exchange with each other; empty if the exchange is exact inside nodes and lossy across.
    flat_reason: str
    # What one rank sends in one step, bytes.
    wire_bytes: int
    # What leaves one node in one step, bytes; None for a flat exchange.
    node_bytes: int | None


@dataclass(frozen=True)
class SwitchReport:
    """What a switch did on this rank."""

    # L2 norm of the residual that was thrown away, None if there was none or it was kept.
    residual_norm_dropped: float | None


class Prepared:
    """A validated plan, ready to be switched to; dropping it frees what it allocated."""

    def __init__(
        self,
        plan: Plan,
        parameters: Mapping[str, Tensor],
        shapes: Iterable[BucketShape],
        ranks: Ranks,
        device: torch.device,
    ) -> None:
        """Allocate for `shapes` on `device`; "meta" only counts the bytes."""
        self.plan = plan
        # The bucket shapes seen, and who averages those that are not exact altogether.
        self._shapes: dict[int, BucketShape] = {}
        self.buckets: dict[int, LossyBucket] = {}
        self._ranks, self._device, self._parameters = ranks, device, parameters
        self.warm_starts = WarmStarts()
        self.powers: Powers = {}
        self._compressed = {
            decision.name for decision in plan.resolve(parameters.items()) if decision.codec != EXACT
        }
        # What the codec takes on this rank; None if buckets are compressed whatever it takes.
        self.own_codec_line: Line | None = None
        self._costs: Costs | None = None
        # Buckets that were weighed, and the parameters of those that travel exactly for that reason.
        self._estimates: dict[int, Estimate] = {}
        self._spared: set[str] = set()
        self._scratch = Scratch(device)
        self._codec = None
        if self._compressed and ranks.group is not None:
            kind = next(iter(parameters.values())).device
            self._codec = registry.make(plan.codec, plan.parameters, kind)
            if device.type == "cuda":
                compat.check_stream_ordered(ranks.group, plan.codec)
                self._warm_up(self._codec)
        for shape in shapes:
            self.build(shape)

    def _warm_up(self, codec: ScaledCodec | CastCodec | LowRankCodec) -> None:
        # Between nodes a shard is float32 whatever the bucket is.
        dtypes = {torch.float32, *(self._parameters[name].dtype for name in self._compressed)}
        if not isinstance(codec, LowRankCodec):
            # Kernels are launched on the current device, which need not be the model's outside of its own passes.
            with torch.cuda.device(self._device):
                codec.warm_up(self._device, sorted(dtypes, key=str))

    @property
    def memory_bytes(self) -> int:
        """Residuals and buffers, bytes."""
        return self._scratch.num_bytes + sum(bucket.memory_bytes for bucket in self.compressed)

    @property
    def compressed(self) -> tuple[LossyBucket, ...]:
        """The buckets that are not exact altogether; any thread."""
        return tuple(self.buckets.values())

    @property
    def codec(self) -> Codec | None:
        """The codec, None if nothing is compressed."""
        return self._codec

    @property
    def shapes(self) -> tuple[BucketShape, ...]:
        """The buckets built so far; any thread."""
        return tuple(self._shapes.values())

    def exact_bytes(self, num_bytes: int) -> int:
        """Return what one rank sends to average so many bytes exactly."""
        return exact_wire_bytes(num_bytes, self._ranks.world_size)

    def sent_bytes(self, shape: BucketShape, numel: int) -> int | None:
        """Return the share that `numel` compressed elements have in what their bucket sends; any thread.

        None if the bucket is not compressed.
        """
        bucket = self.buckets.get(shape.index)
        if bucket is None:
            return None
        return bucket.collective.wire_bytes * numel // max(1, sum(slot.numel for slot in bucket.compressed))

    @property
    def estimates(self) -> dict[int, Estimate]:
        """What weighed buckets should take, by index; any thread."""
        return dict(self._estimates)

    @property
    def flat_reason(self) -> str:
        """Why the exchange is in one level; empty if it is exact inside nodes and compressed across."""
        if self._ranks.nodes is None:
            return self._ranks.flat_reason
        if self._codec is None:
            return "nothing is compressed"
        if self.plan.exchange == "flat":
            return "the plan asks for it"
        if isinstance(self._codec, LowRankCodec):
            return "the codec needs whole matrices"
        return ""

    def owned_names(self) -> list[str]:
        """Return the parameters of which some rank may hold a residual as an owner, in the model's order."""
        return [
            name for name in self._parameters if self.is_compressed(name) and isinstance(self._codec, ScaledCodec)
        ]

    def route(self) -> Route:
        """Return how the buckets built so far travel."""
        ranks = self._ranks
        exact_bytes = sum(
            shape.dtype.itemsize * slot.numel
            for shape in self._shapes.values()
            for slot in shape.slots
            if not self.is_compressed(slot.name)
        )
        exact = exact_wire_bytes(exact_bytes, ranks.world_size)
        collectives = [bucket.collective for bucket in self.buckets.values()]
        wire_bytes = exact + sum(collective.wire_bytes for collective in collectives)
        if self.flat_reason or ranks.nodes is None:
            return Route(self.flat_reason, wire_bytes, None)
        across = [one.outer_wire_bytes if isinstance(one, Hierarchical) else one.wire_bytes for one in collectives]
        # A ring that visits the ranks node by node leaves each node once.
        return Route("", wire_bytes, exact + ranks.nodes.inner_size * sum(across))

    def is_compressed(self, name: str) -> bool:
        """Return whether the codec is used for this parameter."""
        return self._codec is not None and name in self._compressed and name not in self._spared

    def is_built(self, shape: BucketShape) -> bool:
        """Return whether this very shape was built."""
        return self._shapes.get(shape.index) is shape

    def build(self, shape: BucketShape, is_dense: bool = True) -> LossyBucket | None:
        """Allocate for one bucket, residuals at zero; None if all of it is averaged exactly."""
        self._shapes[shape.index] = shape
        if not is_dense:
            return None
        compressed = tuple(slot for slot in shape.slots if self.is_compressed(slot.name))
        if not any(slot.numel for slot in compressed) or self._ranks.group is None:
            return None
        exempt = tuple(slot for slot in shape.slots if not self.is_compressed(slot.name))
        collective = self._collective(compressed, shape.dtype, self._ranks.group)
        bucket = LossyBucket(
            shape, compressed, exempt, collective, self._ranks.group, self._ranks.world_size, self._scratch
        )
        self.buckets[shape.index] = bucket
        return None if self._spare(bucket) else bucket

    def decide_by(self, costs: Costs) -> None:
        """Give up buckets that are faster exactly, now and whenever one is built; before residuals are given.

        Args:
            costs: Equal on all ranks.
        """
        self._costs = costs
        for bucket in list(self.buckets.values()):
            self._spare(bucket)

    def _spare(self, bucket: LossyBucket) -> bool:
        """Weigh the bucket, and give it up if it is faster exactly."""
        if self._costs is None or self._codec is None:
            return False
        index = bucket.shape.index
        self._estimates[index] = bucket.estimate(self._costs, self._codec)
        if not self._estimates[index].is_exact_faster:
            return False
        del self.buckets[index]
        self._spared.update(slot.name for slot in bucket.compressed)
        return True

    def give(self, held: dict[str, Tensor], owners: dict[str, Tensor]) -> None:
        """Load all buckets with the residuals that are held for them, and take those out of both."""
        for bucket in self.buckets.values():
            bucket.load(held, owners)

    def owed(self) -> dict[str, Tensor]:
        """Return copies of all residuals by name, the owners' folded in."""
        held: dict[str, Tensor] = {}
        for bucket in self.buckets.values():
            held.update(residuals.split(bucket.collective.owed(), bucket.compressed))
        return held

    def worker_residuals(self, first_index: int = 0) -> dict[str, Tensor]:
        """Return copies of this rank's residuals by name, without what it holds as an owner."""
        held: dict[str, Tensor] = {}
        for bucket in self._from(first_index):
            held.update(residuals.split(bucket.collective.worker_residual(), bucket.compressed))
        return held

    def owner_pieces(self, first_index: int = 0) -> Pieces:
        """Return copies of what this rank holds as an owner."""
        held: Pieces = {}
        for bucket in self._from(first_index):
            for name, offset, part in residuals.cut(bucket.compressed, bucket.collective.owner_parts()):
                held.setdefault(name, []).append((offset, part.clone()))
        return held

    def agreements(self) -> dict[str, Any]:
        """Return copies of what the ranks agreed on so far and go on from, as fields of a state."""
        return {"warm_starts": self.warm_starts.copies(), "powers": known_powers(self.powers)}

    def owned(self, first_index: int = 0) -> list[str]:
        """Return the parameters of which some rank holds a residual as an owner; the same on all ranks."""
        if not isinstance(self._codec, ScaledCodec):
            return []
        return [slot.name for bucket in self._from(first_index) for slot in bucket.compressed]

    def rescale(self, factor: float) -> None:
        """Multiply the residuals of all buckets."""
        for bucket in self.buckets.values():
            bucket.collective.rescale(factor)

    def drop(self, first_index: int = 0) -> None:
        """Give up the buckets from `first_index` on, with their residuals."""
        for index in [index for index in self._shapes if index >= first_index]:
            self._spared.difference_update(slot.name for slot in self._shapes.pop(index).slots)
            self._estimates.pop(index, None)
            if bucket := self.buckets.pop(index, None):
                # The stages of an exchange in two levels have a power each.
                last = bucket.compressed[-1].name
                for names in [names for names in self.powers if names[-1] == last]:
                    del self.powers[names]

    def _from(self, first_index: int) -> list[LossyBucket]:
        return [bucket for index, bucket in self.buckets.items() if index >= first_index]

    def _collective(self, slots: tuple[Slot, ...], dtype: torch.dtype, group: ProcessGroup) -> LossyCollective:
        ranks, nodes = self._ranks, self._ranks.nodes
        numel = sum(slot.numel for slot in slots)
        names = [slot.name for slot in slots]
        if nodes is None or self.flat_reason or not is_divisible(numel, nodes.inner_size):
            return self._flat(slots, names, group, ranks.rank, ranks.world_size, self._scratch)

        def across(owned: tuple[Slot, ...], stage: int) -> LossyCollective:
            # Those that a shard's pieces come from would differ between ranks, and a stage has one power anyway.
            of_stage = [f"stage {stage}", *names]
            scratch = self._scratch.section(f"stage {stage}")
            return self._flat(owned, of_stage, nodes.outer, nodes.outer_rank, nodes.outer_size, scratch)

        inside = torch.bfloat16 if self.plan.exchange == "hybrid" else dtype
        return Hierarchical(slots, inside, nodes, across, self._scratch, self._device)

    def _flat(
        self,
        slots: tuple[Slot, ...],
        names: Sequence[str],
        group: ProcessGroup,
        rank: int,
        world_size: int,
        scratch: Scratch,
    ) -> LossyCollective:
        codec = self._codec
        assert codec is not None
        if isinstance(codec, ScaledCodec):
            return TwoPhase(slots, codec, group, rank, world_size, scratch, self._device)
        if isinstance(codec, LowRankCodec):
            matrices = [matrix_of(self._parameters[slot.name]) for slot in slots]
            return LowRank(slots, matrices, codec, self.warm_starts, group, world_size, scratch, self._device)
        power = AgreedPower(self.powers, names, self._device)
        return Cast(slots, codec, power, group, rank, world_size, scratch, self._device)
