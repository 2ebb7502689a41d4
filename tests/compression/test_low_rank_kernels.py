"""Compiled kernels of low-rank averages beside the references: products to the bit, projections to rounding."""

import pytest
import torch
from gradwire_compression.kernels import _cpu
from gradwire_compression.kernels.low_rank.cpu import CpuLowRankKernels
from gradwire_compression.kernels.low_rank.reference import Found, Multiply, ReferenceLowRankKernels

COMPILED, REFERENCE = CpuLowRankKernels(_cpu), ReferenceLowRankKernels()
SHAPES = [(1, 1), (1, 7), (63, 33), (40, 1000), (3, 4097), (5000, 2), (17, 1024)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def _made(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _sizes(shape, rank, by):
    """Return the shapes of what is given and of the product."""
    rows, columns = (rank, shape[0]), (rank, shape[1])
    return (columns, rows) if by is Multiply.COLUMNS else (rows, columns)


@pytest.mark.parametrize("by", [Multiply.COLUMNS, Multiply.ROWS], ids=["columns", "rows"])
@pytest.mark.parametrize("rank", [1, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sweep_settles_and_adds_to_the_bit_and_multiplies(shape, dtype, rank, by):
    given_size, product_size = _sizes(shape, rank, by)
    settled = _made(rank, shape[0], seed=1), _made(rank, shape[1], seed=2)
    gradient, given = _made(shape[0] * shape[1], seed=3, dtype=dtype), _made(*given_size, seed=4)
    made = []
    for kernels in (COMPILED, REFERENCE):
        matrix, product = _made(*shape, seed=5), torch.zeros(product_size)
        assert kernels.sweep(matrix, settled, gradient, by, given, product) is Found.SOMETHING
        made.append((matrix, product))
    (matrix, product), (wanted_matrix, wanted) = made
    assert torch.equal(matrix, wanted_matrix)
    exact = given.double() @ (matrix.double().t() if by is Multiply.COLUMNS else matrix.double())
    size = given.double().abs() @ (matrix.double().abs().t() if by is Multiply.COLUMNS else matrix.double().abs())
    for found in (product, wanted):
        assert bool(((found - exact).abs() <= 1e-5 * size).all())


@pytest.mark.parametrize("kernels", [COMPILED, REFERENCE], ids=["compiled", "reference"])
def test_sweep_without_a_gradient_only_multiplies(kernels):
    matrix, product = _made(30, 70), torch.zeros(2, 30)
    given = _made(2, 70, seed=1)
    assert kernels.sweep(matrix, None, None, Multiply.COLUMNS, given, product) is Found.SOMETHING
    assert torch.equal(matrix, _made(30, 70))
    torch.testing.assert_close(product, given @ matrix.t())


@pytest.mark.parametrize("kernels", [COMPILED, REFERENCE], ids=["compiled", "reference"])
def test_sweep_without_factors_only_settles(kernels):
    matrix, (rows, columns) = _made(3, 2000), (_made(1, 3, seed=1), _made(1, 2000, seed=2))
    kernels.sweep(matrix, (rows, columns), None, Multiply.NOTHING, None, None)
    assert torch.equal(matrix, _made(3, 2000) - rows.t() * columns)


@pytest.mark.parametrize("kernels", [COMPILED, REFERENCE], ids=["compiled", "reference"])
def test_gradient_of_zeros_settles_and_says_so(kernels):
    matrix, (rows, columns) = _made(9, 20), (_made(1, 9, seed=1), _made(1, 20, seed=2))
    gradient = torch.zeros(180)
    gradient[7] = -0.0
    found = kernels.sweep(matrix, (rows, columns), gradient, Multiply.ROWS, rows, torch.zeros(1, 20))
    assert found is Found.ALL_ZERO
    assert torch.equal(matrix, _made(9, 20) - rows.t() * columns)


@pytest.mark.parametrize("kernels", [COMPILED, REFERENCE], ids=["compiled", "reference"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("place", [0, 1023, 1024, 2500, 5099])
def test_what_is_not_finite_is_left_out_and_the_matrix_is_what_it_was(kernels, bad, place):
    """A finite gradient whose sum with the residual overflows is as bad as one that is not finite."""
    matrix, (rows, columns) = _made(3, 1700), (_made(1, 3, seed=1), _made(1, 1700, seed=2))
    matrix.view(-1)[place] = 3e38
    settled = matrix - rows.t() * columns
    gradient = _made(5100, seed=3)
    gradient[place] = bad
    found = kernels.sweep(matrix, (rows, columns), gradient, Multiply.ROWS, rows, torch.zeros(1, 1700))
    assert found is Found.NOT_FINITE
    torch.testing.assert_close(matrix, settled, rtol=0, atol=1e-5)


@pytest.mark.parametrize("rank", [1, 4])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_written_product_is_the_same_to_the_bit(shape, dtype, rank):
    rows, columns = _made(rank, shape[0], seed=1), _made(rank, shape[1], seed=2)
    made = []
    for kernels in (COMPILED, REFERENCE):
        out = torch.full((shape[0] * shape[1],), torch.nan, dtype=dtype)
        kernels.write(rows, columns, out)
        made.append(out)
    assert torch.equal(*made)
    torch.testing.assert_close(made[0].float(), (rows.t() @ columns).view(-1), rtol=1e-2, atol=1e-2)
