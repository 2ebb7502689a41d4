import torch
from gradwire_compression.buckets import UNKNOWN, BucketBook, BucketView, pack


def _view(index, parameters, is_last=False):
    return BucketView(index, is_last, torch.zeros(sum(p.numel() for p in parameters)), parameters)


def _book(parameters):
    return BucketBook({id(parameter): f"p{index}" for index, parameter in enumerate(parameters)})


def test_slots_lie_one_after_the_other():
    slots = pack([("a", 3), ("b", 0), ("c", 5)])
    assert [(slot.name, slot.offset, slot.numel) for slot in slots] == [("a", 0, 3), ("b", 3, 0), ("c", 3, 5)]
    flat = torch.arange(8)
    assert [slot.of(flat).tolist() for slot in slots] == [[0, 1, 2], [], [3, 4, 5, 6, 7]]


def test_book_keeps_one_shape_for_a_bucket_that_stays():
    parameters = [torch.zeros(3), torch.zeros(5)]
    book = _book(parameters)
    assert book.hash == 0
    first = book.shape_of(_view(0, parameters))
    book.end_step(1)
    number = book.hash
    assert 0 < number < 2**48
    assert book.shape_of(_view(0, parameters)) is first
    book.end_step(1)
    assert book.hash == number


def test_book_notices_that_parameters_moved_or_buckets_vanished():
    parameters = [torch.zeros(3), torch.zeros(3)]
    book = _book(parameters)
    for index, parameter in enumerate(parameters):
        book.shape_of(_view(index, [parameter]))
    book.end_step(2)
    apart = book.hash
    for index, parameter in enumerate(reversed(parameters)):
        book.shape_of(_view(index, [parameter]))
    book.end_step(2)
    swapped = book.hash
    book.shape_of(_view(0, parameters))
    book.end_step(1)
    assert len({apart, swapped, book.hash}) == 3
    assert [shape.index for shape in book.shapes] == [0]
    assert book.num_buckets == 1


def test_book_names_a_stranger_so_that_it_stays_exact():
    known, stranger = torch.zeros(3), torch.zeros(3)
    shape = _book([known]).shape_of(_view(0, [known, stranger]))
    assert [slot.name for slot in shape.slots] == ["p0", UNKNOWN]
