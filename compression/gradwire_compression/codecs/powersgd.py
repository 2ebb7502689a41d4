"""powersgd: matrices travel as the product of two thin ones, found by one step of a power iteration."""

import torch
from torch import Tensor

from gradwire_compression.codecs.facts import CodecFacts, ParameterFacts
from gradwire_compression.errors import PlanError
from gradwire_compression.matrices import matrix_of

# How many bits an element takes depends on the shapes of the model's matrices.
FACTS = CodecFacts(
    "powersgd",
    None,
    is_lossy=True,
    has_residual=True,
    parameters=(ParameterFacts("rank", "int", 4, 1, 32, "higher rank, less compression"),),
)

# A matrix is compressed only if its factors are smaller than the matrix by more than this.
LEAST_RATIO = 2


class LowRankCodec:
    """Says how thin the two factors are; the arithmetic is the collective's, since averages come in between."""

    name = "powersgd"

    def __init__(self, rank: int, device: torch.device) -> None:
        if device.type != "cpu":
            raise PlanError(f"powersgd has no kernels for {device.type} tensors in this version; use none")
        # Columns of each factor.
        self.rank = rank


def exact_reason(parameter: Tensor, rank: int) -> str:
    """Return why factors of this rank do not pay for the parameter's gradient, empty if they do."""
    matrix = matrix_of(parameter)
    if (matrix.num_rows + matrix.num_columns) * rank * LEAST_RATIO < matrix.numel:
        return ""
    return f"rank {rank} saves too little on a {matrix.num_rows} x {matrix.num_columns} matrix"
