"""Equal bits give equal checksums, and a change anywhere gives another one."""

import pytest
import torch
from gradwire.steering.checksums import checksums, fold
from torch import Tensor

SIZES = [0, 1, 2, 3, 7, 63, 501, 502, 503, 4097, 100_003]


def one(tensor: Tensor) -> int:
    return int(checksums([tensor]))


def filled(size: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(size)
    return (100 * torch.randn(size, generator=generator)).to(dtype)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int8])
def test_equal_bits_give_equal_checksums(size, dtype):
    assert one(filled(size, dtype)) == one(filled(size, dtype).clone())


@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.uint8])
def test_one_bit_anywhere_gives_another_checksum(size, dtype):
    tensor = filled(size, torch.float32).to(dtype)
    before = one(tensor)
    memory = tensor.view(torch.uint8)
    for place in {0, memory.numel() // 2, memory.numel() - 1}:
        memory[place] ^= 1
        assert one(tensor) != before
        memory[place] ^= 1
    assert one(tensor) == before


@pytest.mark.parametrize("width", [64, 500, 1024])
def test_rows_in_another_order_give_another_checksum(width):
    tensor = filled(40 * width, torch.float32).view(40, width)
    swapped = tensor.clone()
    swapped[[3, 11]] = tensor[[11, 3]]
    assert one(swapped) != one(tensor)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_where_a_tensor_lies_in_a_larger_one_makes_no_difference(offset):
    tensor = filled(1003, torch.bfloat16)
    larger = torch.zeros(1100, dtype=torch.bfloat16)
    larger[offset : offset + 1003] = tensor
    assert one(larger[offset : offset + 1003]) == one(tensor)


def test_strides_are_read_as_they_lie_in_memory():
    image = filled(2 * 3 * 5 * 7, torch.float32).view(2, 3, 5, 7).contiguous(memory_format=torch.channels_last)
    assert one(image) == one(image.permute(0, 2, 3, 1).flatten())
    assert one(torch.ones(1).expand(4, 5)) == one(torch.ones(20))
    assert one(torch.tensor(2.5)) == one(torch.tensor([2.5]))


def test_zeros_with_another_sign_and_not_a_number_are_told_apart_by_their_bits():
    assert one(torch.tensor([0.0])) != one(torch.tensor([-0.0]))
    assert one(torch.tensor([torch.nan])) == one(torch.tensor([torch.nan]))


def test_each_tensor_has_a_number_of_its_own_and_their_order_counts():
    first, second = filled(30, torch.float32), filled(31, torch.float32)
    assert checksums([first, second]).tolist() == [one(first), one(second)]
    assert fold(checksums([first, second])) != fold(checksums([second, first]))
    assert 0 <= fold(checksums([first, second])) < 2**48
