"""Gradients as matrices: how a flat gradient is read, and what low-rank averaging does with its factors."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradwire_compression.hashing import hash_json
from gradwire_compression.memory_order import memory_order

# A direction that keeps less than this of its length beside the others is rounding, not gradient. Kept, it would
# be noise that differs between kinds of processors, and replicas would part.
_LEAST_SHARE = 1e-5


@dataclass(frozen=True)
class Matrix:
    """The shape of one gradient as a matrix, and how it lies in memory."""

    num_rows: int
    num_columns: int
    # The columns lie one after the other, not the rows.
    is_transposed: bool = False

    @property
    def numel(self) -> int:
        """Elements of the matrix."""
        return self.num_rows * self.num_columns

    def of(self, flat: Tensor) -> Tensor:
        """Return a view [num_rows, num_columns] of a contiguous [numel]."""
        stored = self.stored(flat)
        return stored.t() if self.is_transposed else stored

    def stored(self, flat: Tensor) -> Tensor:
        """Return a contiguous view of a contiguous [numel]: the matrix, or its transpose if that is how it lies."""
        shape = (self.num_columns, self.num_rows) if self.is_transposed else (self.num_rows, self.num_columns)
        return flat.view(shape)

    def stored_factors(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows, columns) whose product lies as `stored` does, of [r, num_rows] and [r, num_columns]."""
        return (right, left) if self.is_transposed else (left, right)


def matrix_of(parameter: Tensor) -> Matrix:
    """Return the parameter's gradient as a matrix: its first dimension against all others.

    The gradient lies in memory as the parameter does, so a transposed or channels_last weight is read by its
    strides; the order of the columns among themselves is that of memory, on which no rank depends. Where the first
    dimension lies between others, the outermost one takes its place.
    """
    dims = memory_order(parameter)
    if not dims or parameter.numel() == 0:
        return Matrix(parameter.numel(), 1)
    is_transposed = dims[-1] == 0 and len(dims) > 1
    num_rows = parameter.shape[0 if is_transposed else dims[0]]
    return Matrix(num_rows, parameter.numel() // num_rows, is_transposed)


def start(name: str, rank: int, length: int, device: torch.device) -> Tensor:
    """Return [rank, length] float32: random directions that depend on the arguments alone.

    Every rank gets the same; torch's own random state is not touched.
    """
    if device.type == "meta":
        return torch.empty(rank, length, device=device)
    generator = torch.Generator().manual_seed(hash_json([name, rank, length]))
    return normalise(torch.randn(rank, length, generator=generator)).to(device)


def normalise(rows: Tensor) -> Tensor:
    """Return the rows at length one; a row of zeros stays zero.

    Args:
        rows: [..., n] float32 of any magnitude, neither squared to infinity nor to zero.
    """
    largest = rows.abs().amax(dim=-1, keepdim=True)
    scaled = rows / largest.masked_fill(largest == 0, 1.0)
    length: Tensor = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / length.masked_fill(length == 0, 1.0)


def orthonormalise(batch: Tensor) -> Tensor:
    """Return the rows of each matrix made orthogonal to each other, at length one.

    A row that depends on those before it becomes zero, as does a row of zeros, so that nothing is ever divided by
    zero; a matrix with an element that is not finite becomes NaN. Each matrix comes out the same, bit for bit,
    whichever others are in the batch.

    Args:
        batch: [k, r, n] float32, n >= 1.

    Cost: about 8 r small operations, whatever k is; does not synchronise the device.
    Source: classical Gram-Schmidt with a second pass, which is enough for orthogonality at working precision
        (Giraud, Langou and Rozloznik 2005). Sums instead of matrix products keep matrices independent.
    """
    largest = batch.abs().amax(dim=(1, 2), keepdim=True)
    made = (batch / largest.masked_fill(largest == 0, 1.0)).masked_fill(~largest.isfinite(), torch.nan)
    for index in range(made.shape[1]):
        row, before = made[:, index], made[:, :index]
        length = torch.linalg.vector_norm(row, dim=1, keepdim=True)
        for _ in range(2 if index else 0):
            along = (before * row[:, None]).sum(dim=2, keepdim=True)
            row = row - (before * along).sum(dim=1)
        left = torch.linalg.vector_norm(row, dim=1, keepdim=True)
        made[:, index] = torch.where(left <= _LEAST_SHARE * length, torch.zeros_like(row), row / left)
    return made


class WarmStarts:
    """The directions that low-rank averaging begins its next step with, by parameter name.

    They are the same on every rank, and stay where they are when a bucket is dealt out anew.
    """

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def take(self, name: str, rank: int, length: int, device: torch.device) -> Tensor:
        """Return [rank, length] float32 of this parameter, to be updated in place; random ones if it has none."""
        held = self._held.get(name)
        if held is None or held.shape != (rank, length):
            held = start(name, rank, length, device)
        # Loaded ones may lie elsewhere.
        self._held[name] = held.to(device)
        return self._held[name]

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from earlier directions; those of another shape are left out."""
        for name, tensor in state.items():
            held = self._held.get(name)
            if held is None:
                self._held[name] = tensor.to(torch.float32).clone()
            elif held.shape == tensor.shape:
                held.copy_(tensor)

    def copies(self) -> dict[str, Tensor]:
        """Return a copy of every parameter's directions."""
        return {name: tensor.clone() for name, tensor in self._held.items()}
