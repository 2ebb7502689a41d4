"""The average in two levels: exact inside a node, where links are fast, and compressed between nodes."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor

from gradwire_compression import residuals
from gradwire_compression.buckets import Slot, pack
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.base import LossyCollective
from gradwire_compression.collectives.nodes import NodeGroups
from gradwire_compression.collectives.two_phase import MAX_PART_BYTES
from gradwire_compression.finite import ends_of, finite_flag, nonfinite_tensors
from gradwire_compression.scratch import Scratch
from gradwire_compression.trace import Trace

# Kernels load 16 bytes at once where every tensor begins at a multiple of so many elements.
_ALIGNMENT = 4

# Hops inside hide behind the hop across of other stages: all but those of one stage of so many. More stages mean
# more messages.
MAX_STAGES = 6


@dataclass(frozen=True)
class _Stage:
    """Some of the parts: they travel between nodes together, while those of other stages travel inside."""

    parts: slice
    # (place in compact order, begin, end) of each piece of this rank's shard; begin and end in the stage's shard.
    pieces: tuple[tuple[int, int, int], ...]
    owned: tuple[Slot, ...]
    # The average of the shard across nodes.
    outer: LossyCollective

    @property
    def num_owned(self) -> int:
        """Elements of the shard without what pads it."""
        return self.pieces[-1][2]


class Hierarchical:
    """One bucket's exchange in three hops: reduce-scatter inside, lossy average across, all-gather inside.

    The compressed tensors lie one after the other in a vector that is dealt out in order to parts x L chunks of
    equal size. The shard of rank l is chunk l of each part; it is averaged with rank l of every other node.
    Gradients travel inside in `dtype`, and so does the averaged shard: in the bucket's own dtype neither loses
    anything, in bfloat16 a float32 bucket is rounded twice, to 8 bits, and no residual remembers that. The sum is
    made in float32 in rank order. The parts go across in a few stages, so that links inside and between nodes are
    busy at the same time.

    Cost: sends 2 (L - 1) / L of the compressed tensors' bytes inside the node, and across what the outer average
    sends for 1 / L of the elements. Memory: the outer average's for 1 / L of the elements; 8 bytes for each element
    and 4 for each of the shard are in the shared scratch.
    Source: the hierarchical all-to-all of ZeRO++ (arXiv:2306.10209), with nothing lost inside the node.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        dtype: torch.dtype,
        nodes: NodeGroups,
        make_outer: Callable[[tuple[Slot, ...], int], LossyCollective],
        scratch: Scratch,
        device: torch.device,
    ) -> None:
        """`make_outer` gives a stage's average across nodes of tensors in a flat float32 vector.

        `dtype` is what travels inside nodes.
        """
        self._slots, self._dtype, self._nodes, self._scratch, self._device = slots, dtype, nodes, scratch, device
        self._packed = pack((slot.name, slot.numel) for slot in slots)
        self._numel = sum(slot.numel for slot in slots)
        self._ends = ends_of((slot.numel for slot in slots), device)
        self._num_parts, self._chunk = divide(self._numel, nodes.inner_size)
        self._num_padded = self._num_parts * nodes.inner_size * self._chunk
        self._stages = []
        for index, parts in enumerate(self._divide_parts()):
            pieces = tuple(self._pieces(parts))
            owned = self._owned_slots(pieces)
            self._stages.append(_Stage(parts, pieces, owned, make_outer(owned, index)))
        sent_inside = (nodes.inner_size - 1) * self._num_parts * self._chunk * dtype.itemsize
        # What one rank sends to other nodes.
        self.outer_wire_bytes = sum(stage.outer.wire_bytes for stage in self._stages)
        self.inner_wire_bytes = 2 * sent_inside
        self.wire_bytes = self.inner_wire_bytes + self.outer_wire_bytes
        # Residuals are dealt out in float32 whatever the bucket is.
        scratch.reserve("inside sent", 4 * self._num_padded)
        scratch.reserve("inside received", 4 * self._num_padded)
        scratch.reserve("shard", 4 * self._num_parts * self._chunk)

    @property
    def num_stages(self) -> int:
        """How often the codec is used one after the other; the same on all ranks."""
        return len(self._stages)

    @property
    def shard_numel(self) -> int:
        """Elements that this rank averages with other nodes, padding included; the same on all ranks."""
        return self._num_parts * self._chunk

    @property
    def num_nodes(self) -> int:
        """Nodes that average with each other."""
        return self._nodes.outer_size

    @property
    def memory_bytes(self) -> int:
        """Residuals of this bucket, bytes."""
        return sum(stage.outer.memory_bytes for stage in self._stages)

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Begin with what the ranks of this node hold together, each rank with its shard of it."""
        sent, _ = self._wires(torch.float32)
        residuals.load(sent.view(-1)[: self._numel], self._packed, held)
        arrivals = self._start_inside(torch.float32)
        for stage in self._stages:
            shard = self._sum_inside(stage, arrivals, torch.float32, Trace(float))
            stage.outer.load(residuals.split(shard[: stage.num_owned], stage.owned))

    def exchange(self, buffer: Tensor, trace: Trace) -> Iterator[None]:
        """Average inside, across, and gather the result inside, a hop at a time; the buffer is only read."""
        with trace.measure("encode"):
            self._pack(buffer, self._wires(self._dtype)[0].view(-1))
        arrivals = self._start_inside(self._dtype)
        yield
        # Every stage is on its way across before the first is waited for.
        crossing = []
        for stage in self._stages:
            hops = stage.outer.exchange(self._sum_inside(stage, arrivals, self._dtype, trace), trace)
            next(hops)
            crossing.append(hops)
        for hops in crossing:
            next(hops, None)
        gathers = []
        for stage, hops in zip(self._stages, crossing, strict=True):
            for _ in hops:
                pass
            gathers += self._start_gathers(stage, trace)
        yield
        for gather in gathers:
            gather.wait()

    def _start_gathers(self, stage: _Stage, trace: Trace) -> list[dist.Work]:
        """Decode this rank's averaged shard and send it to the ranks of this node."""
        sent, received = self._wires(self._dtype)
        # What this rank sent of these parts is not needed any more, and makes room for the shard.
        own = sent[stage.parts].view(-1)[: self._shard(stage).numel()].view(-1, self._chunk)
        stage.outer.receive(own.view(-1), trace)
        return [
            compat.start_all_gather(result.view(-1), part, self._nodes.inner)
            for result, part in zip(received[stage.parts], own, strict=True)
        ]

    def is_finite(self) -> Tensor:
        """Return [] bool: whether the mean is finite; the same on every rank."""
        # What pads the last part is sent along, and neither averaged nor looked at.
        return finite_flag(self._wires(self._dtype)[1].view(-1)[: self._numel])

    def own_nonfinite(self, buffer: Tensor) -> Tensor:
        """Return [parameters] bool: of which of them this rank's own gradient is not finite."""
        # What was sent is not needed any more.
        own = self._wires(self._dtype)[0].view(-1)
        self._pack(buffer, own)
        return nonfinite_tensors(own[: self._numel], self._ends)

    def settle(self, is_clean: Tensor, buffer: Tensor) -> None:
        """Settle the averages across; the shards still hold what they averaged."""
        for stage in self._stages:
            stage.outer.settle(is_clean, self._shard(stage))

    def receive(self, buffer: Tensor, trace: Trace) -> None:
        """Write the mean into the buffer."""
        _, received = self._wires(self._dtype)
        with trace.measure("decode"):
            for slot, packed in zip(self._slots, self._packed, strict=True):
                slot.of(buffer).copy_(packed.of(received.view(-1)))

    def worker_residual(self) -> Tensor:
        """Return a new [n] float32: L times this rank's residual of its shard, and nothing elsewhere."""
        return self._spread([stage.outer.worker_residual() for stage in self._stages])

    def owner_parts(self) -> list[tuple[int, Tensor]]:
        """Return (place in compact order, view) of what this rank holds as an owner of the average across."""
        found = []
        for stage in self._stages:
            for start, values in stage.outer.owner_parts():
                for place, begin, end in stage.pieces:
                    first, last = max(start, begin), min(start + values.numel(), end)
                    if first < last:
                        found.append((place + first - begin, values[first - start : last - start]))
        return found

    def rescale(self, factor: float) -> None:
        """Multiply the residuals of the averages across."""
        for stage in self._stages:
            stage.outer.rescale(factor)

    def owed(self) -> Tensor:
        """Return a new [n] float32: L times what this rank holds of its shard, and nothing elsewhere."""
        return self._spread([stage.outer.owed() for stage in self._stages])

    def owed_at(self, places: Tensor) -> Tensor:
        """Return elements of `owed`. Cost: makes all of it."""
        return self.owed()[places]

    def _spread(self, shards: Sequence[Tensor]) -> Tensor:
        """Return a new [n] float32 with L times what lies in each stage's shard in its places."""
        total = torch.zeros(self._numel, device=self._device)
        for stage, shard in zip(self._stages, shards, strict=True):
            for place, begin, end in stage.pieces:
                total[place : place + end - begin].add_(shard[begin:end], alpha=self._nodes.inner_size)
        return total

    def _start_inside(self, dtype: torch.dtype) -> list[dist.Work]:
        """Send every part of "inside sent" to the ranks of this node, each its chunk."""
        sent, received = self._wires(dtype)
        return [
            compat.start_all_to_all(arrived.view(-1), part.view(-1), self._nodes.inner)
            for arrived, part in zip(received, sent, strict=True)
        ]

    def _sum_inside(self, stage: _Stage, arrivals: Sequence[dist.Work], dtype: torch.dtype, trace: Trace) -> Tensor:
        """Return this rank's flat shard of the mean over the node, once its parts are there.

        Summed in float32 here rather than by the backend, which would sum in the wire's dtype and on gloo sends all
        of it to everybody.
        """
        _, received = self._wires(dtype)
        shard = self._shard(stage)
        totals = shard.view(-1, self._chunk)
        for arrival, arrived, total in zip(arrivals[stage.parts], received[stage.parts], totals, strict=True):
            arrival.wait()
            with trace.measure("decode"):
                total.copy_(arrived[0])
                for part in arrived[1:]:
                    total.add_(part)
                total.div_(self._nodes.inner_size)
        return shard

    def _pack(self, buffer: Tensor, flat: Tensor) -> None:
        for slot, packed in zip(self._slots, self._packed, strict=True):
            packed.of(flat).copy_(slot.of(buffer))

    def _divide_parts(self) -> list[slice]:
        """Return the parts of each stage; every rank has some of the vector in each of them."""
        num_full = self._numel // (self._nodes.inner_size * self._chunk)
        num_stages = max(1, min(MAX_STAGES, num_full))
        ends = [num_full * (index + 1) // num_stages for index in range(num_stages - 1)] + [self._num_parts]
        return [slice(begin, end) for begin, end in pairwise([0, *ends])]

    def _pieces(self, parts: slice) -> Iterator[tuple[int, int, int]]:
        stride = self._nodes.inner_size * self._chunk
        begin = 0
        for part in range(parts.start, parts.stop):
            place = part * stride + self._nodes.inner_rank * self._chunk
            end = begin + max(0, min(self._chunk, self._numel - place))
            yield place, begin, end
            begin = end

    def _owned_slots(self, pieces: Iterable[tuple[int, int, int]]) -> tuple[Slot, ...]:
        """Return the pieces of tensors that a shard consists of, under names of their own."""
        sizes = [
            min(place + end - begin, slot.offset + slot.numel) - max(place, slot.offset)
            for place, begin, end in pieces
            for slot in self._packed
        ]
        return pack((str(index), size) for index, size in enumerate(size for size in sizes if size > 0))

    def _wires(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return (sent, received), both [parts, L, chunk]."""
        shape = (self._num_parts, self._nodes.inner_size, self._chunk)
        num_bytes = self._num_padded * dtype.itemsize
        sent = self._scratch.take("inside sent", num_bytes, dtype).view(shape)
        return sent, self._scratch.take("inside received", num_bytes, dtype).view(shape)

    def _shard(self, stage: _Stage) -> Tensor:
        """Return the stage's flat shard, what pads it included."""
        num_bytes = 4 * self._num_parts * self._chunk
        shard = self._scratch.take("shard", num_bytes, torch.float32)
        return shard[stage.parts.start * self._chunk : stage.parts.stop * self._chunk]


def is_divisible(numel: int, inner_size: int) -> bool:
    """Return whether every rank of a node gets some of `numel` elements."""
    return numel > _ALIGNMENT * inner_size * (inner_size - 1)


def divide(numel: int, inner_size: int) -> tuple[int, int]:
    """Return (parts, elements of a shard of a part), about `MAX_PART_BYTES` of float32 in a part."""
    num_parts = max(1, -(-4 * numel // MAX_PART_BYTES))
    chunk = -(-numel // (num_parts * inner_size))
    chunk = -(-chunk // _ALIGNMENT) * _ALIGNMENT
    # Rounding up may leave nothing for the last part.
    return -(-numel // (inner_size * chunk)), chunk
