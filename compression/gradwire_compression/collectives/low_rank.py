"""The low-rank average: two thin factors of each matrix, averaged by two native all-reduces."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from gradwire_compression import residuals
from gradwire_compression.buckets import Slot
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.collectives import compat
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.finite import finite_flag
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.low_rank.reference import Factors, Found, Multiply
from gradwire_compression.matrices import Matrix, WarmStarts, normalise, orthonormalise
from gradwire_compression.scratch import Scratch, zeros
from gradwire_compression.trace import Trace


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

    The residual holds G from a step to the next, beside the factors whose product is still to be subtracted: the
    pass that adds the next gradient does that as well. Memory is what these averages wait for, so a pass saved
    counts more than any arithmetic.

    Ranks hold the same bits as long as their processors are of one kind, since each makes the factors orthonormal
    itself.

    Cost: sends 2 (W - 1) / W * 4 r (n + m) bytes for each n x m matrix, in two all-reduces for the whole bucket.
    Memory: 4 bytes for each element and 4 r (n + 2 m) for each n x m matrix; what is on its way is in the scratch.
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
        self._kernels = dispatch.low_rank_kernels()
        self._worker = zeros(sum(slot.numel for slot in slots), device)
        self._pieces: list[_Piece] = []
        left = right = 0
        residual_parts = self._worker.split([slot.numel for slot in slots])
        for slot, matrix, residual in zip(slots, matrices, residual_parts, strict=True):
            left_end, right_end = left + codec.rank * matrix.num_rows, right + codec.rank * matrix.num_columns
            warm_start = warm_starts.take(slot.name, codec.rank, matrix.num_columns, device)
            places = slice(left, left_end), slice(right, right_end)
            self._pieces.append(_Piece(slot, matrix, residual, *places, warm_start))
            left, right = left_end, right_end
        self._left, self._own_right = zeros(left, device), zeros(right, device)
        self._right_bytes = self._own_right.nbytes
        # Matrices whose factors are as long, which are worked on together: small tensors cost their call.
        self._as_tall = _alike(self._pieces, lambda matrix: matrix.num_rows)
        self._as_wide = _alike(self._pieces, lambda matrix: matrix.num_columns)
        self._found: list[Found] = []
        # Pieces whose product with the factors of the step before is still in their residual.
        self._unsettled: set[int] = set()
        self.wire_bytes = sum(exact_wire_bytes(size.nbytes, world_size) for size in (self._left, self._own_right))
        scratch.reserve("left", self._left.nbytes)
        scratch.reserve("right", self._right_bytes)

    @property
    def memory_bytes(self) -> int:
        """Residuals, warm starts and unsettled factors of this bucket, bytes."""
        held = (self._worker, self._left, self._own_right, *(piece.warm_start for piece in self._pieces))
        return sum(tensor.nbytes for tensor in held)

    def load(self, held: Mapping[str, Tensor]) -> None:
        """Begin with the residuals that are held for these parameters, the others at zero."""
        self._unsettled.clear()
        residuals.load(self._worker, [piece.slot for piece in self._pieces], held)

    def exchange(self, buffer: Tensor, trace: Trace) -> Iterator[None]:
        """Find and average both factors, a hop for each; the buffer is only read."""
        left, right, own_right = self._left, self._right(), self._own_right
        with trace.measure("encode"):
            # Dividing before the sum keeps large gradients finite.
            torch.mul(self._add(buffer), 1 / self._world_size, out=left)
        lefts = compat.start_all_reduce(left, self._group)
        yield
        lefts.wait()
        with trace.measure("encode"):
            self._orthonormalise()
            for piece, found in zip(self._pieces, self._found, strict=True):
                out = own_right[piece.right]
                if found is Found.SOMETHING:
                    rows = self._rows(left[piece.left])
                    torch.mm(rows, piece.matrix.of(piece.residual), out=self._rows(out))
                else:
                    out.fill_(_stand_in(found))
            torch.mul(own_right, 1 / self._world_size, out=right)
        rights = compat.start_all_reduce(right, self._group)
        yield
        rights.wait()

    def is_finite(self) -> Tensor:
        """Return [] bool: whether the averaged factors are finite; the same on every rank."""
        return finite_flag(self._left) & finite_flag(self._right())

    def own_nonfinite(self, buffer: Tensor) -> Tensor:
        """Return [parameters] bool: of which of them this rank sent something that is not finite."""
        return torch.tensor([found is Found.NOT_FINITE for found in self._found])

    def settle(self, is_clean: Tensor, buffer: Tensor) -> None:
        """Make the residuals and warm starts of this step the valid ones if `is_clean`, else bring back the old."""
        sent = [index for index, found in enumerate(self._found) if found is Found.SOMETHING]
        # This runs on the CPU alone, where the flag is known.
        if is_clean:
            self._unsettled.update(sent)
            self._turn()
        else:
            for piece in (self._pieces[index] for index in sent):
                piece.residual.sub_(piece.slot.of(buffer))

    def receive(self, buffer: Tensor, trace: Trace) -> None:
        """Write the product of the averaged factors into the buffer."""
        right = self._right()
        with trace.measure("decode"):
            for piece in self._pieces:
                rows, columns = piece.matrix.stored_factors(
                    self._rows(self._left[piece.left]), self._rows(right[piece.right])
                )
                self._kernels.write(rows, columns, piece.slot.of(buffer))

    def worker_residual(self) -> Tensor:
        """Return a copy of the residual."""
        self._settle_all()
        return self._worker.clone()

    def owner_parts(self) -> list[tuple[int, Tensor]]:
        """Return nothing: a sum has no owner."""
        return []

    def rescale(self, factor: float) -> None:
        """Multiply the residual."""
        self._settle_all()
        self._worker.mul_(factor)

    def owed(self) -> Tensor:
        """Return a copy of the residual; a sum has no owner."""
        return self.worker_residual()

    def owed_at(self, places: Tensor) -> Tensor:
        """Return elements of the residual."""
        self._settle_all()
        return self._worker[places]

    def _add(self, buffer: Tensor) -> Tensor:
        """Add the gradients to the residuals; return the product of each with its warm start."""
        # The factors of the step before are still needed beside it.
        products = self._scratch.take("left", self._left.nbytes, torch.float32).zero_()
        self._found = []
        for index, piece in enumerate(self._pieces):
            product = products[piece.left]
            found = self._kernels.sweep(
                piece.matrix.stored(piece.residual),
                self._settled(index),
                piece.slot.of(buffer),
                Multiply.ROWS if piece.matrix.is_transposed else Multiply.COLUMNS,
                piece.warm_start,
                self._rows(product),
            )
            if found is not Found.SOMETHING:
                product.fill_(_stand_in(found))
            self._found.append(found)
        self._unsettled.clear()
        return products

    def _settled(self, index: int) -> Factors | None:
        """Return the factors whose product is to be subtracted from a piece's residual."""
        if index not in self._unsettled:
            return None
        piece = self._pieces[index]
        return piece.matrix.stored_factors(
            self._rows(self._left[piece.left]), self._rows(self._own_right[piece.right])
        )

    def _settle_all(self) -> None:
        for index, piece in enumerate(self._pieces):
            if (factors := self._settled(index)) is not None:
                stored = piece.matrix.stored(piece.residual)
                self._kernels.sweep(stored, factors, None, Multiply.NOTHING, None, None)
        self._unsettled.clear()

    def _turn(self) -> None:
        """Go on from the averaged directions in the next step."""
        right = self._right()
        for pieces in self._as_wide:
            found = normalise(torch.stack([self._rows(right[piece.right]) for piece in pieces]))
            # A direction in which nothing was found this time is tried again next time; zeros would stay zeros.
            is_found = found.any(dim=2, keepdim=True)
            for piece, directions, is_new in zip(pieces, found, is_found, strict=True):
                piece.warm_start.copy_(torch.where(is_new, directions, piece.warm_start))

    def _orthonormalise(self) -> None:
        """Do it in place."""
        for pieces in self._as_tall:
            factors = [self._rows(self._left[piece.left]) for piece in pieces]
            for factor, made in zip(factors, orthonormalise(torch.stack(factors)), strict=True):
                factor.copy_(made)

    def _rows(self, flat: Tensor) -> Tensor:
        return flat.view(self._rank, -1)

    def _right(self) -> Tensor:
        return self._scratch.take("right", self._right_bytes, torch.float32)


def _alike(pieces: Iterable[_Piece], length: Callable[[Matrix], int]) -> list[list[_Piece]]:
    found: dict[int, list[_Piece]] = {}
    for piece in pieces:
        found.setdefault(length(piece.matrix), []).append(piece)
    return list(found.values())


def _stand_in(found: Found) -> float:
    """Return what a factor is filled with where there is none; every rank must see what is not finite."""
    return torch.nan if found is Found.NOT_FINITE else 0.0
