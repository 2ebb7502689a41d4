"""One bucket under a lossy plan: some tensors compressed, the exempt ones exact, all of them averaged together."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression import residuals
from gradwire_compression.buckets import BucketShape, Slot, pack
from gradwire_compression.collectives.base import LossyCollective
from gradwire_compression.collectives.exact import exact_wire_bytes, start_exact
from gradwire_compression.costs import Codec, Costs, Estimate, estimate
from gradwire_compression.finite import ends_of, finite_flag, nonfinite_tensors
from gradwire_compression.flush import Flush
from gradwire_compression.scratch import Scratch
from gradwire_compression.trace import Trace


@dataclass(frozen=True)
class Outcome:
    """What came out of averaging one bucket; flags are where the bucket is."""

    # [] bool: whether the averaged bucket is finite; the same on every rank.
    is_clean: Tensor
    # [parameters] bool: in which of them this rank's own gradient was not finite.
    is_bad: Tensor
    # In the order of `is_bad`.
    parameters: tuple[str, ...]
    wire_bytes: int


class LossyBucket:
    """Runs on the Lane; the buffers of exempt tensors are in the shared scratch."""

    def __init__(
        self,
        shape: BucketShape,
        compressed: tuple[Slot, ...],
        exempt: tuple[Slot, ...],
        collective: LossyCollective,
        group: ProcessGroup,
        world_size: int,
        scratch: Scratch,
    ) -> None:
        self.shape, self.compressed, self.collective = shape, compressed, collective
        self._exempt, self._group, self._world_size, self._scratch = exempt, group, world_size, scratch
        # Where the exempt tensors lie in a flat tensor of their own.
        self._packed = pack((slot.name, slot.numel) for slot in exempt)
        self._num_exempt = sum(slot.numel for slot in exempt)
        self._ends = ends_of((slot.numel for slot in exempt), scratch.device)
        self._names = tuple(slot.name for slot in (*exempt, *compressed))
        # During a flush they travel as float32 whatever the bucket is.
        scratch.reserve("exempt", 4 * self._num_exempt)

    @property
    def memory_bytes(self) -> int:
        """Residuals of this bucket, bytes."""
        return self.collective.memory_bytes

    def estimate(self, costs: Costs, codec: Codec) -> Estimate:
        """Return what this bucket should take exactly, and as it is exchanged here."""
        size = self.shape.dtype.itemsize
        return estimate(
            costs,
            codec,
            self.collective,
            num_elements=sum(slot.numel for slot in self.compressed),
            num_bytes=size * self.shape.numel,
            exempt_bytes=size * self._num_exempt,
            world_size=self._world_size,
        )

    def load(self, held: dict[str, Tensor], owners: dict[str, Tensor]) -> None:
        """Begin with the residuals that are held for these parameters, and take them out of both.

        Args:
            held: This rank's, by parameter name.
            owners: Those of all owners, the same on every rank; this one takes the parts that it owns now.
        """
        self.collective.load(held)
        for name, offset, part in residuals.cut(self.compressed, self.collective.owner_parts()):
            part.copy_(owners[name][offset : offset + part.numel()]) if name in owners else part.zero_()
        for slot in self.compressed:
            held.pop(slot.name, None)
            owners.pop(slot.name, None)

    def average(self, buffer: Tensor, flush: Flush | None, trace: Trace) -> Outcome:
        """Overwrite `buffer` with the mean over ranks.

        Args:
            buffer: [shape.numel] of the shape's dtype, contiguous.
            flush: What is owed to exempt tensors, if anything is.
            trace: Takes the codec intervals: all work on the bucket but the waiting for others.
        """
        flush = flush if flush is not None and flush.touches(self._exempt) else None
        with trace.measure("encode"):
            exempt = self._gather(buffer, flush)
            is_bad = nonfinite_tensors(exempt, self._ends)
            work = start_exact(exempt, self._group, self._world_size) if self._exempt else None
        for _ in self.collective.exchange(buffer, trace):
            # There is nothing else to do for this bucket.
            pass
        if work is not None:
            work.wait()
        with trace.measure("decode"):
            if flush is not None:
                flush.settle(exempt, self._packed)
            is_clean = self.collective.is_finite() & finite_flag(exempt)
            is_bad = torch.cat([is_bad, self._own_nonfinite(is_clean, buffer)])
            self.collective.settle(is_clean, buffer)
        self.collective.receive(buffer, trace)
        if self._exempt:
            torch._foreach_copy_(
                [slot.of(buffer) for slot in self._exempt], [packed.of(exempt) for packed in self._packed]
            )
        return Outcome(is_clean, is_bad, self._names, self._wire_bytes(exempt))

    def _gather(self, buffer: Tensor, flush: Flush | None) -> Tensor:
        dtype = buffer.dtype if flush is None else torch.float32
        exempt = self._scratch.take("exempt", self._num_exempt * dtype.itemsize, dtype)
        if self._exempt:
            torch.cat([slot.of(buffer) for slot in self._exempt], out=exempt)
        if flush is not None:
            flush.add(exempt, self._packed)
        return exempt

    def _own_nonfinite(self, is_clean: Tensor, buffer: Tensor) -> Tensor:
        if is_clean.device.type == "cpu" and is_clean:
            # What one rank sends that is not finite shows in the mean, so a finite mean saves this pass.
            return torch.zeros(len(self.compressed), dtype=torch.bool)
        return self.collective.own_nonfinite(buffer)

    def _wire_bytes(self, exempt: Tensor) -> int:
        return self.collective.wire_bytes + exact_wire_bytes(exempt.nbytes, self._world_size)
