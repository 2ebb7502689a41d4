"""The low-rank average: two thin factors of each matrix, averaged by two native all-reduces."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression import residuals
from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.finite import finite_flag
from gradwire_compression.matrices import Matrix, WarmStarts, normalise, orthonormalise
from gradwire_compression.scratch import Scratch, zeros
from gradwire_compression.trace import Trace


class _Fate(Enum):
    """What this rank sends of one matrix in this step."""

    FACTORS = 1
    # The gradient is exactly zero here: nothing is sent and the residual is kept.
    NOTHING = 2
    # The gradient is not finite here, which every rank must see.
    NAN = 3


@dataclass(frozen=True)
class _Piece:
    """One matrix of the bucket; its residual and its places in the shared buffers, elements."""

    slot: Slot
    matrix: Matrix
    residual: Tensor
    left: slice
    right: slice
    # [rank, num_columns]: where the power iteration goes on.
    warm_start: Tensor


class LowRank:
    """One bucket's exchange as pairs of factors, G = left^T right, with r rows in each factor.

    left = orthonormal rows that span the mean of start G^T over ranks, right = the mean of left G. G is the
    gradient plus this rank's residual; the next residual is what this rank's own product misses of it,
    G - left^T (left G). PyTorch's hook subtracts the averaged product instead, exempt tensors included: with data
    that differ between ranks its buffers grow without bound.

    Ranks hold the same bits as long as their processors are of one kind, since each multiplies the factors itself.

    Cost: sends 2 (W - 1) / W * 4 r (n + m) bytes for each n x m matrix, in two all-reduces for the whole bucket.
    Memory: 4 bytes for each element and 4 r m for each matrix; the sums of gradient and residual, 4 bytes for each
    element of the largest bucket, are in the shared scratch.
    Source: PowerSGD (arXiv:1905.13727), algorithm 2, warm-started by parameter, with local error feedback.
    """

    def __init__(
        self,
        slots: Sequence[Slot],
        matrices: Sequence[Matrix],
        codec: LowRankCodec,
        warm_starts: WarmStarts,
        group: ProcessGroup,
        world_size: int,
        scratch: Scratch,
        device: torch.device,
    ) -> None:
        self._rank, self._group, self._world_size, self._scratch = codec.rank, group, world_size, scratch
        self._numel = sum(slot.numel for slot in slots)
        self.worker = zeros(self._numel, device)
        self._pieces: list[_Piece] = []
        left = right = 0
        residual_parts = self.worker.split([slot.numel for slot in slots])
        for slot, matrix, residual in zip(slots, matrices, residual_parts, strict=True):
            left_end, right_end = left + codec.rank * matrix.num_rows, right + codec.rank * matrix.num_columns
            warm_start = warm_starts.take(slot.name, codec.rank, matrix.num_columns, device)
            places = slice(left, left_end), slice(right, right_end)
            self._pieces.append(_Piece(slot, matrix, residual, *places, warm_start))
            left, right = left_end, right_end
        self._left_bytes, self._right_bytes = 4 * left, 4 * right
        self._fates: list[_Fate] = []
        self.wire_bytes = sum(exact_wire_bytes(size, world_size) for size in (self._left_bytes, self._right_bytes))
        scratch.reserve("sums", 4 * self._numel)
        scratch.reserve("left", self._left_bytes)
        scratch.reserve("right", self._right_bytes)
        scratch.reserve("own right", self._right_bytes)

    @property
    def memory_bytes(self) -> int:
        """Residuals and warm starts of this bucket, bytes."""
        return self.worker.nbytes + sum(piece.warm_start.nbytes for piece in self._pieces)

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Begin with the residuals that are held for these parameters, the others at zero."""
        residuals.load(self.worker, [piece.slot for piece in self._pieces], held)

    def exchange(self, buffer: Tensor, trace: Trace) -> Iterator[None]:
        """Find and average both factors, a hop for each; the buffer is only read."""
        left, right, own_right = self._factors()
        with trace.measure("encode"):
            self._fates = [self._add(piece, buffer, total) for piece, total in self._sums()]
            for (piece, total), fate in zip(self._sums(), self._fates, strict=True):
                _product(fate, piece.warm_start, piece.matrix.of(total).t(), left[piece.left])
            # Dividing before the sum keeps large gradients finite.
            left.mul_(1 / self._world_size)
        lefts = compat.start_all_reduce(left, self._group)
        yield
        lefts.wait()
        with trace.measure("encode"):
            self._orthonormalise(left)
            for (piece, total), fate in zip(self._sums(), self._fates, strict=True):
                rows = left[piece.left].view(self._rank, -1)
                _product(fate, rows, piece.matrix.of(total), own_right[piece.right])
            torch.mul(own_right, 1 / self._world_size, out=right)
        rights = compat.start_all_reduce(right, self._group)
        yield
        rights.wait()

    def is_finite(self) -> Tensor:
        """Return [] bool: whether the averaged factors are finite; the same on every rank."""
        left, right, _ = self._factors()
        return finite_flag(left) & finite_flag(right)

    def own_nonfinite(self, buffer: Tensor) -> Tensor:
        """Return [parameters] bool: of which of them this rank sent something that is not finite."""
        return torch.tensor([fate is _Fate.NAN for fate in self._fates])

    def settle(self, is_clean: Tensor, buffer: Tensor) -> None:
        """Make the residuals and warm starts of this step the valid ones if `is_clean`."""
        # Until then they are those from before it; this runs on the CPU alone, where the flag is known.
        if not is_clean:
            return
        left, right, own_right = self._factors()
        for (piece, total), fate in zip(self._sums(), self._fates, strict=True):
            of = piece.matrix.of
            if fate is _Fate.FACTORS:
                rows, own = left[piece.left].view(self._rank, -1), own_right[piece.right].view(self._rank, -1)
                torch.addmm(of(total), rows.t(), own, alpha=-1, out=of(piece.residual))
            found = normalise(right[piece.right].view(self._rank, -1))
            # A direction in which nothing was found this time is tried again next time; zeros would stay zeros.
            piece.warm_start.copy_(torch.where(found.any(dim=1, keepdim=True), found, piece.warm_start))

    def receive(self, buffer: Tensor, trace: Trace) -> None:
        """Write the product of the averaged factors into the buffer."""
        left, right, _ = self._factors()
        with trace.measure("decode"):
            for piece, total in self._sums():
                gradient = piece.slot.of(buffer)
                # The sum is not needed any more, and takes the product where the bucket is not float32.
                product = gradient if gradient.dtype == torch.float32 else total
                rows = left[piece.left].view(self._rank, -1)
                columns = right[piece.right].view(self._rank, -1)
                torch.mm(rows.t(), columns, out=piece.matrix.of(product))
                if product is total:
                    gradient.copy_(total)

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

    @staticmethod
    def _add(piece: _Piece, buffer: Tensor, total: Tensor) -> _Fate:
        """Write gradient plus residual into `total` where they are to be sent."""
        gradient = piece.slot.of(buffer)
        smallest, largest = torch.aminmax(gradient)
        if not bool(smallest.isfinite() & largest.isfinite()):
            return _Fate.NAN
        if not bool(smallest.any() | largest.any()):
            return _Fate.NOTHING
        torch.add(piece.residual, gradient, out=total)
        return _Fate.FACTORS

    def _orthonormalise(self, left: Tensor) -> None:
        """Do it in place, all matrices with as many rows at once."""
        by_length: dict[int, list[Tensor]] = {}
        for piece in self._pieces:
            by_length.setdefault(piece.matrix.num_rows, []).append(left[piece.left].view(self._rank, -1))
        for factors in by_length.values():
            for factor, made in zip(factors, orthonormalise(torch.stack(factors)), strict=True):
                factor.copy_(made)

    def _sums(self) -> list[tuple[_Piece, Tensor]]:
        """Return each matrix with its part [numel] of the shared sums."""
        sums = self._scratch.take("sums", 4 * self._numel, torch.float32)
        parts = sums.split([piece.slot.numel for piece in self._pieces])
        return list(zip(self._pieces, parts, strict=True))

    def _factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the flat buffers (left, right, this rank's own right)."""
        left = self._scratch.take("left", self._left_bytes, torch.float32)
        right = self._scratch.take("right", self._right_bytes, torch.float32)
        return left, right, self._scratch.take("own right", self._right_bytes, torch.float32)


def _product(fate: _Fate, one: Tensor, other: Tensor, out: Tensor) -> None:
    """Write one @ other into the flat `out`, or what stands for it."""
    if fate is _Fate.FACTORS:
        torch.mm(one, other, out=out.view(one.shape[0], -1))
    else:
        out.fill_(torch.nan if fate is _Fate.NAN else 0.0)
