"""What the kernels of low-rank averages do, in plain torch.

A matrix M [n, m] of residuals lies beside two factors, rows [r, n] and columns [r, m], whose product is
rows^T columns. What ranks must have in common to the last bit, the product that is written and the one that is
settled, has a defined order: factor after factor, each multiplied and then added. A projection is a rank's own
until it is averaged, and may be added up in any order.
"""

from enum import Enum, IntEnum

import torch
from torch import Tensor


class Multiply(IntEnum):
    """What a sweep multiplies the matrix by."""

    NOTHING = 0
    # given [r, m], product [r, n] = given M^T
    COLUMNS = 1
    # given [r, n], product [r, m] = given M
    ROWS = 2


class Found(Enum):
    """What a sweep met in the gradient, or in its sum with the residual."""

    SOMETHING = 0
    NOT_FINITE = 1
    ALL_ZERO = 2


# (rows, columns) of a product that is still in the matrix and has to be subtracted.
Factors = tuple[Tensor, Tensor]


class ReferenceLowRankKernels:
    """Sweep and write."""

    def sweep(
        self,
        matrix: Tensor,
        settled: Factors | None,
        gradient: Tensor | None,
        by: Multiply,
        given: Tensor | None,
        product: Tensor | None,
    ) -> Found:
        """Subtract the product of `settled`, add the gradient, and multiply what comes out.

        Where the sum is not finite the gradient is left out, right to rounding, and the product means nothing.

        Args:
            matrix: [n, m] float32, contiguous; updated in place.
            settled: rows [r, n] and columns [r, m], float32.
            gradient: [n m] of any float type, in the order of the matrix.
            by: What to multiply by.
            given: Its factor, float32.
            product: The other factor, float32 zeros; written.

        Returns:
            Found: `SOMETHING` where there is no gradient.
        """
        if settled is not None:
            for rows, columns in zip(*settled, strict=True):
                matrix.sub_(torch.outer(rows, columns))
        found = Found.SOMETHING if gradient is None else self._add(matrix, gradient)
        if given is not None and product is not None:
            torch.mm(given, matrix.t() if by is Multiply.COLUMNS else matrix, out=product)
        return found

    def write(self, rows: Tensor, columns: Tensor, out: Tensor) -> None:
        """Write rows^T columns into the flat `out` [n m] of any float type."""
        made = torch.zeros(rows.shape[1], columns.shape[1])
        for row, column in zip(rows, columns, strict=True):
            made.add_(torch.outer(row, column))
        out.copy_(made.view(-1))

    @staticmethod
    def _add(matrix: Tensor, gradient: Tensor) -> Found:
        total = matrix + gradient.view_as(matrix)
        if not bool(total.isfinite().all()):
            return Found.NOT_FINITE
        matrix.copy_(total)
        return Found.SOMETHING if gradient.any() else Found.ALL_ZERO
