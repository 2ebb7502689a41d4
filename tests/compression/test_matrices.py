"""Gradients as matrices, and the arithmetic of their factors."""

import pytest
import torch
from gradwire_compression.matrices import Matrix, WarmStarts, matrix_of, normalise, orthonormalise, start
from torch import nn

CPU = torch.device("cpu")


def _flat(tensor):
    """The tensor as DDP lays it into a bucket: as it lies in memory."""
    return tensor.as_strided((tensor.numel(),), (1,))


@pytest.mark.parametrize(
    "parameter",
    [
        torch.randn(6, 4),
        torch.randn(4, 6).t(),
        torch.randn(6, 3, 5, 2),
        torch.randn(6, 3, 5, 2).to(memory_format=torch.channels_last),
        torch.randn(3, 5, 6).permute(2, 0, 1),
        torch.randn(6, 1, 4),
    ],
    ids=["plain", "transposed", "convolution", "channels_last", "innermost", "middle_of_one"],
)
def test_matrix_holds_one_slice_of_the_first_dimension_in_each_row(parameter):
    matrix = matrix_of(parameter)
    view = matrix.of(_flat(parameter))
    assert view.shape == (6, parameter.numel() // 6)
    for row, part in zip(view, parameter, strict=True):
        assert torch.equal(row.sort().values, part.flatten().sort().values)
    # Columns are the same elements of every slice: a sum of two products of thin factors is seen as rank two.
    columns = view.t()[:, None] == parameter.flatten(1).t()[None]
    assert columns.reshape(columns.shape[0], -1, 6).all(dim=2).any(dim=1).all()


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_matrix_of_a_low_rank_weight_has_that_rank_however_it_lies_in_memory(order):
    weight = (torch.randn(12, 2) @ torch.randn(2, 20)).permute(order).contiguous().permute(order)
    assert torch.linalg.matrix_rank(matrix_of(weight).of(_flat(weight))) == 2
    if order == (1, 0):
        # Read by its shape alone, the same memory is a jumble.
        assert torch.linalg.matrix_rank(_flat(weight).view(12, 20)) > 2


def test_first_dimension_between_others_gives_way_to_the_outermost():
    weight = torch.randn(5, 6, 4).permute(1, 0, 2)
    assert matrix_of(weight) == Matrix(5, 24)


@pytest.mark.parametrize("shape", [(), (7,), (0, 4), (4, 0), (1, 1), (1, 9), (9, 1)])
def test_degenerate_shapes_have_one_column_or_one_row(shape):
    matrix = matrix_of(torch.zeros(shape))
    assert matrix.numel == torch.zeros(shape).numel()
    assert min(matrix.num_rows, matrix.num_columns) <= 1


def test_parameter_with_gaps_is_read_as_contiguous():
    weight = nn.Parameter(torch.randn(6, 8)[:, ::2])
    assert matrix_of(weight) == Matrix(6, 4)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-44, 1e30])
@pytest.mark.parametrize(("rank", "length"), [(1, 16), (4, 40), (8, 257), (32, 1000)])
def test_orthonormal_rows_span_what_the_rows_spanned(rank, length, scale):
    rows = torch.randn(3, rank, length) * scale
    made = orthonormalise(rows)
    assert torch.allclose(made @ made.transpose(1, 2), torch.eye(rank).expand(3, -1, -1), atol=2e-6)
    if scale != 1e-44:
        unit = rows / scale
        assert torch.allclose((unit @ made.transpose(1, 2)) @ made, unit, atol=1e-4)


def test_dependent_rows_and_zeros_become_zero_and_never_nan():
    rows = torch.randn(4, 5, 60)
    rows[0] = 0
    rows[1, 1:] = rows[1, :1]
    rows[2, 3] = rows[2, 0] - 2 * rows[2, 1]
    made = orthonormalise(rows)
    products = made @ made.transpose(1, 2)
    assert products.diagonal(dim1=1, dim2=2).round().tolist() == [
        [0, 0, 0, 0, 0],
        [1, 0, 0, 0, 0],
        [1, 1, 1, 0, 1],
        [1, 1, 1, 1, 1],
    ]
    assert torch.allclose(products, products.round(), atol=2e-6)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_matrix_that_is_not_finite_becomes_nan_and_harms_no_other(bad):
    rows = torch.randn(3, 4, 50)
    spoiled = rows.clone()
    spoiled[1, 2, 3] = bad
    made = orthonormalise(spoiled)
    assert made[1].isnan().any(dim=1).all()
    assert torch.equal(made[[0, 2]], orthonormalise(rows)[[0, 2]])


@pytest.mark.parametrize(("rank", "length"), [(4, 40), (8, 257), (32, 1000)])
def test_matrix_comes_out_the_same_in_any_batch(rank, length):
    rows = torch.randn(7, rank, length)
    together = orthonormalise(rows)
    for index in range(7):
        assert torch.equal(orthonormalise(rows[index : index + 1])[0], together[index])
    assert torch.equal(orthonormalise(rows[2:5]), together[2:5])


def test_normalised_rows_have_length_one_whatever_their_magnitude():
    rows = torch.randn(5, 30) * torch.tensor([1.0, 1e-30, 1e30, 1e-44, 0.0])[:, None]
    lengths = normalise(rows).norm(dim=1)
    assert torch.allclose(lengths, torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0]), atol=1e-6)


def test_start_depends_on_its_arguments_alone_and_leaves_random_numbers_alone():
    state = torch.get_rng_state()
    first = start("body.weight", 4, 100, CPU)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(first, start("body.weight", 4, 100, CPU))
    assert not torch.equal(first, start("head.weight", 4, 100, CPU))
    assert torch.linalg.matrix_rank(first) == 4


def test_warm_starts_follow_names_and_leave_other_shapes_out():
    warm_starts = WarmStarts()
    held = warm_starts.take("a", 2, 10, CPU)
    held.fill_(3.0)
    assert warm_starts.take("a", 2, 10, CPU) is held
    loaded = WarmStarts()
    taken_before = loaded.take("a", 2, 10, CPU)
    loaded.load(warm_starts.copies())
    assert torch.equal(taken_before, held)
    assert not torch.equal(loaded.take("a", 3, 10, CPU)[:2], held)
    loaded.load(warm_starts.copies())
    assert loaded.take("a", 3, 10, CPU).shape == (3, 10)
