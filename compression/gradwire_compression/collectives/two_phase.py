"""The compressed average: everybody encodes, owners average and encode again, everybody decodes the same bytes."""

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression import residuals
from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.collectives import compat
from gradwire_compression.finite import ends_of, nonfinite_parts
from gradwire_compression.layout import Layout
from gradwire_compression.scratch import Scratch, choose, zeros
from gradwire_compression.trace import Trace

# gloo sends one large exchange half-duplex; in parts of this size, issued together, both directions are busy.
MAX_PART_BYTES = 1024 * 1024


class TwoPhase:
    """One bucket's two-phase exchange.

    The blocks are dealt out in order to parts x W shards of equal size; shard s belongs to rank s % W. Rank r sends
    shard (part, o) to owner o, who averages and encodes it again; then all ranks gather all owners' results.

    Cost: sends 2 (W - 1) * parts * codec.wire_bytes(blocks of a shard) bytes per rank. Memory: 4 bytes for each
    element and 8 for each owned one; the payload buffers are in the shared scratch.
    Source: the compressed all-reduce of 1-bit Adam (arXiv:2102.02888), with block scales inside the payload.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        codec: ScaledCodec,
        group: ProcessGroup,
        rank: int,
        world_size: int,
        scratch: Scratch,
        device: torch.device,
    ) -> None:
        self._slots, self._codec, self._group, self._scratch = slots, codec, group, scratch
        self._world_size = world_size
        self._layout = Layout.build(slots, codec.block)
        # Where each tensor's blocks end.
        self._ends = ends_of((-(-slot.numel // codec.block) for slot in slots), device)
        most_bytes = MAX_PART_BYTES if dist.get_backend(group) == "gloo" else None
        self._num_parts, self._shard_blocks = divide(self._layout.num_blocks, world_size, codec, most_bytes)
        self._shard_bytes = codec.wire_bytes(self._shard_blocks)
        num_shards = self._num_parts * world_size
        self._parts = [
            self._layout.deal(first * self._shard_blocks, self._shard_blocks, world_size)
            for first in range(0, num_shards, world_size)
        ]
        self._owned = [part.each[rank].compact() for part in self._parts]
        self._owned_places = [(part.each[rank].start, part.each[rank].numel) for part in self._parts]
        for layout in (*(part.whole for part in self._parts), *self._owned):
            layout.place(device)
        self.wire_bytes = 2 * (world_size - 1) * self._num_parts * self._shard_bytes
        self.worker = zeros(self._layout.numel, device)
        num_owned = sum(layout.numel for layout in self._owned)
        self._owner = zeros(num_owned, device)
        self._new_owner = zeros(num_owned, device)
        scratch.reserve("sent", num_shards * self._shard_bytes)
        scratch.reserve("received", num_shards * self._shard_bytes)
        scratch.reserve("own", self._num_parts * self._shard_bytes)
        self._undo_bytes = codec.undo_bytes(max(part.whole.numel for part in self._parts))
        scratch.reserve("undo", self._undo_bytes)

    @property
    def memory_bytes(self) -> int:
        """Residuals of this bucket, bytes."""
        return self.worker.nbytes + self._owner.nbytes + self._new_owner.nbytes

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Begin with the residuals that are held for these parameters, the others at zero."""
        residuals.load(self.worker, self._slots, held)

    def exchange(self, buffer: Tensor, trace: Trace) -> Iterator[None]:
        """Encode, send, and gather the encoded mean, a hop at a time; the buffer is only read."""
        sent, received, own = self._payloads()
        arrivals = []
        for part, shards in enumerate(self._parts):
            with trace.measure("encode"):
                self._codec.encode_shards(buffer, shards, shards.of(self.worker), sent[part])
            arrivals.append(compat.start_all_to_all(received[part].view(-1), sent[part].view(-1), self._group))
        yield
        gathers = []
        owned_residuals = zip(self._owner_parts(self._owner), self._owner_parts(self._new_owner), strict=True)
        for part, (old, new) in enumerate(owned_residuals):
            arrivals[part].wait()
            with trace.measure("decode"):
                self._codec.reduce(received[part], self._owned[part], old, own[part], new)
            # What was received of this part is averaged, so the gathered results can take its place.
            gathers.append(compat.start_all_gather(received[part].view(-1), own[part], self._group))
        yield
        for gather in gathers:
            gather.wait()

    def is_finite(self) -> Tensor:
        """Return [] bool: whether the encoded mean is finite; the same on every rank."""
        return self._are_finite(self._payloads()[1]).all()

    def own_nonfinite(self, buffer: Tensor) -> Tensor:
        """Return [parameters] bool: of which of them this rank sent something that is not finite."""
        is_bad = ~self._are_finite(self._payloads()[0]).view(-1)
        return nonfinite_parts(is_bad, self._ends)

    def settle(self, is_clean: Tensor, buffer: Tensor) -> None:
        """Make this step's residuals the valid ones if `is_clean`, else bring back those from before it."""
        sent, _, _ = self._payloads()
        # The owner's from before the step were not overwritten.
        self._owner, self._new_owner = choose(is_clean, self._new_owner, self._owner)
        undo = self._scratch.take("undo", self._undo_bytes, torch.float32)
        for payloads, shards in zip(sent, self._parts, strict=True):
            self._codec.take_back(is_clean, payloads, shards, shards.of(self.worker), buffer, undo)

    def receive(self, buffer: Tensor, trace: Trace) -> None:
        """Write the decoded mean into the buffer."""
        _, received, _ = self._payloads()
        with trace.measure("decode"):
            for payloads, shards in zip(received, self._parts, strict=True):
                self._codec.decode_shards(payloads, shards, buffer)

    def worker_residual(self) -> Tensor:
        """Return a copy of this rank's residual, without what it holds as an owner."""
        return self.worker.clone()

    def owner_parts(self) -> list[tuple[int, Tensor]]:
        """Return (place in compact order, view) of what this rank holds as an owner."""
        starts = [start for start, _ in self._owned_places]
        return list(zip(starts, self._owner_parts(self._owner), strict=True))

    def rescale(self, factor: float) -> None:
        """Multiply both residuals."""
        self.worker.mul_(factor)
        self._owner.mul_(factor)

    def owed(self) -> Tensor:
        """Return a new [n] float32: this rank's residual plus W times what it holds as an owner."""
        total = self.worker.clone()
        for start, owned in self.owner_parts():
            total[start : start + owned.numel()].add_(owned, alpha=self._world_size)
        return total

    def owed_at(self, places: Tensor) -> Tensor:
        """Return elements of `owed`."""
        total = self.worker[places]
        for start, owned in self.owner_parts():
            if owned.numel():
                inside = places - start
                values = owned[inside.clamp(0, owned.numel() - 1)]
                is_owned = (inside >= 0) & (inside < owned.numel())
                total += torch.where(is_owned, self._world_size * values, 0.0)
        return total

    def _payloads(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return (sent [parts, W, bytes], received [parts, W, bytes], own [parts, bytes])."""
        shape = (self._num_parts, self._world_size, self._shard_bytes)
        num_bytes = shape[0] * shape[1] * shape[2]
        sent = self._scratch.take("sent", num_bytes).view(shape)
        received = self._scratch.take("received", num_bytes).view(shape)
        own = self._scratch.take("own", shape[0] * shape[2]).view(shape[0], shape[2])
        return sent, received, own

    def _are_finite(self, payloads: Tensor) -> Tensor:
        return self._codec.are_finite(payloads.view(-1, self._shard_bytes), self._shard_blocks)

    def _owner_parts(self, vector: Tensor) -> Sequence[Tensor]:
        return torch.split(vector, [numel for _, numel in self._owned_places])


def divide(
    num_blocks: int, world_size: int, codec: ScaledCodec, most_bytes: int | None = MAX_PART_BYTES
) -> tuple[int, int]:
    """Return (parts, blocks of a shard): the fewest parts whose W payloads stay within `most_bytes`, if any."""
    needed = -(-num_blocks // world_size)
    num_parts = 1
    while (shard_blocks := -(-needed // num_parts)) > 1:
        if most_bytes is None or world_size * codec.wire_bytes(shard_blocks) <= most_bytes:
            break
        num_parts += 1
    return num_parts, shard_blocks
