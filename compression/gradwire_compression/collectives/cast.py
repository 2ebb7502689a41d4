"""The average in two bytes an element: cast, one native all-reduce, cast back."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression import residuals
from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.collectives.power import AgreedPower
from gradwire_compression.finite import ends_of, finite_flag, nonfinite_tensors
from gradwire_compression.layout import Layout
from gradwire_compression.scratch import Scratch, zeros
from gradwire_compression.trace import Trace


class Cast:
    """One bucket's exchange by a cast and an all-reduce.

    Cost: sends 2 (W - 1) / W * 2 bytes for each element and, under fp16, for each rank. Memory: 4 bytes for each
    element; the cast elements and a copy of what was sent are in the shared scratch.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        codec: CastCodec,
        power: AgreedPower,
        group: ProcessGroup,
        rank: int,
        world_size: int,
        scratch: Scratch,
        device: torch.device,
    ) -> None:
        self._slots, self._codec, self._group, self._scratch = slots, codec, group, scratch
        self._power = power
        self._rank, self._world_size = rank, world_size
        self._layout = Layout.build(slots, codec.block)
        self._layout.place(device)
        # The largest magnitude sent, and how the elements of this step are scaled.
        self._largest = zeros(1, device)
        self._ends = ends_of((slot.numel for slot in slots), device)
        self._exponent = zeros(1, device, torch.int32)
        self._num_elements = self._layout.numel + (world_size if codec.is_scaled else 0)
        self._num_bytes = codec.wire_bytes(self._num_elements)
        self.wire_bytes = exact_wire_bytes(self._num_bytes, world_size)
        self.worker = zeros(self._layout.numel, device)
        scratch.reserve("sent", self._num_bytes)
        scratch.reserve("received", self._num_bytes)
        self._undo_bytes = codec.undo_bytes(self._layout.numel)
        scratch.reserve("undo", self._undo_bytes)

    @property
    def memory_bytes(self) -> int:
        """Residuals of this bucket, bytes."""
        return self.worker.nbytes

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Begin with the residuals that are held for these parameters, the others at zero."""
        residuals.load(self.worker, self._slots, held)

    def exchange(self, buffer: Tensor, trace: Trace) -> Iterator[None]:
        """Cast and sum, in one hop; the buffer is only read."""
        sent, received = self._buffers()
        numel = self._layout.numel
        self._exponent.copy_(self._power.exponent)
        with trace.measure("encode"):
            self._codec.encode(
                buffer, self._layout, self.worker, sent[:numel], self._world_size, self._exponent, self._largest
            )
            if self._codec.is_scaled:
                self._power.write(sent[numel:], self._rank, self._largest)
            # The all-reduce works in place, and taking a step back needs to know what was sent.
            received.copy_(sent)
        sum_ = compat.start_all_reduce(received, self._group)
        yield
        sum_.wait()
        if self._codec.is_scaled:
            self._power.read(received[numel:])

    def is_finite(self) -> Tensor:
        """Return [] bool: whether the mean is finite; the same on every rank."""
        return finite_flag(self._wires()[1])

    def own_nonfinite(self, buffer: Tensor) -> Tensor:
        """Return [parameters] bool: of which of them this rank sent something that is not finite."""
        return nonfinite_tensors(self._wires()[0], self._ends)

    def settle(self, is_clean: Tensor, buffer: Tensor) -> None:
        """Bring back the residual from before this step unless `is_clean`."""
        sent, _ = self._wires()
        undo = self._scratch.take("undo", self._undo_bytes, torch.float32)
        self._codec.take_back(
            is_clean, sent, self._layout, self.worker, buffer, undo, self._world_size, self._exponent
        )

    def receive(self, buffer: Tensor, trace: Trace) -> None:
        """Write the mean into the buffer."""
        with trace.measure("decode"):
            self._codec.decode(self._wires()[1], self._layout, buffer, self._exponent)

    def worker_residual(self) -> Tensor:
        """Return a copy of the residual."""
        return self.worker.clone()

    def owner_parts(self) -> list[tuple[int, Tensor]]:
        """Return nothing: a sum has no owner."""
        return []

    def rescale(self, factor: float) -> None:
        """Multiply the residual."""
        self.worker.mul_(factor)

    def owed(self) -> Tensor:
        """Return a copy of the residual; a sum has no owner."""
        return self.worker.clone()

    def owed_at(self, places: Tensor) -> Tensor:
        """Return elements of the residual."""
        return self.worker[places]

    def _wires(self) -> tuple[Tensor, Tensor]:
        """Return the elements that were sent and the sums that were received."""
        sent, received = self._buffers()
        return sent[: self._layout.numel], received[: self._layout.numel]

    def _buffers(self) -> tuple[Tensor, Tensor]:
        sent = self._scratch.take("sent", self._num_bytes, self._codec.dtype)
        return sent, self._scratch.take("received", self._num_bytes, self._codec.dtype)
