"""The compiled kernels of low-rank averages for CPU tensors."""

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.kernels.cpu import DTYPES, address
from gradwire_compression.kernels.low_rank.reference import Factors, Found, Multiply


class CpuLowRankKernels:
    """Sweep and write; see `ReferenceLowRankKernels`."""

    def __init__(self, module: ModuleType) -> None:
        self._sweep: Any = module.low_rank_sweep
        self._write: Any = module.low_rank_write

    def sweep(
        self,
        matrix: Tensor,
        settled: Factors | None,
        gradient: Tensor | None,
        by: Multiply,
        given: Tensor | None,
        product: Tensor | None,
    ) -> Found:
        """Subtract, add and multiply in one pass."""
        num_rows, num_columns = matrix.shape
        some = given if given is not None else settled[0] if settled is not None else None
        rank = 0 if some is None else some.shape[0]
        rows, columns = (None, None) if settled is None else settled
        is_by_rows = by is Multiply.ROWS
        return Found(
            self._sweep(
                address(matrix, torch.float32, matrix.numel()),
                num_rows,
                num_columns,
                rank,
                _optional(rows, rank * num_rows),
                _optional(columns, rank * num_columns),
                0 if gradient is None else address(gradient, gradient.dtype, matrix.numel()),
                0 if gradient is None else DTYPES[gradient.dtype],
                int(by),
                _optional(given, rank * (num_rows if is_by_rows else num_columns)),
                _optional(product, rank * (num_columns if is_by_rows else num_rows)),
            )
        )

    def write(self, rows: Tensor, columns: Tensor, out: Tensor) -> None:
        """Write the product in one pass."""
        rank, num_rows = rows.shape
        num_columns = columns.shape[1]
        self._write(
            num_rows,
            num_columns,
            rank,
            address(rows, torch.float32, rank * num_rows),
            address(columns, torch.float32, rank * num_columns),
            address(out, out.dtype, num_rows * num_columns),
            DTYPES[out.dtype],
        )


def _optional(tensor: Tensor | None, numel: int) -> int:
    return 0 if tensor is None else address(tensor, torch.float32, numel)
