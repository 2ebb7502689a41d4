"""One rank's gradients through every codec, nothing sent."""

import time

import pytest
import torch
from gradwire_compression.buckets import BucketView
from gradwire_compression.codecs import registry
from gradwire_compression.rehearse import MAX_ELEMENTS, norm_shares, rehearse, take_sample

LOSSY = [name for name in registry.available() if registry.facts(name).is_lossy]


def view(*shapes, dtype=torch.float32, make=torch.randn):
    """A bucket of parameters of these shapes, with random gradients."""
    torch.manual_seed(0)
    parameters = [torch.zeros(shape, dtype=dtype) for shape in shapes]
    buffer = make(sum(parameter.numel() for parameter in parameters)).to(dtype)
    return BucketView(0, True, buffer, parameters)


def tried(name, sample):
    parameters = {entry.name: entry.default for entry in registry.facts(name).parameters}
    trial = rehearse(registry.make(name, parameters, torch.device("cpu")), sample, time.perf_counter)
    product, exact, got = trial.sums.tolist()
    error = (max(0.0, got - 2 * product + exact) / exact) ** 0.5
    return product / (exact * got) ** 0.5, error, trial


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LOSSY)
def test_every_codec_can_be_tried(name, dtype):
    sample = take_sample(view((64, 64), (64,), (32, 100), dtype=dtype))
    assert sample is not None
    cosine, error, trial = tried(name, sample)
    assert 0 < cosine < 1 + 1e-9
    assert 0 <= error < 1
    assert trial.num_elements == 64 * 64 + 32 * 100
    assert trial.encode[0] <= trial.encode[1] == trial.decode[0] <= trial.decode[1]


def test_finer_codecs_err_less():
    sample = take_sample(view((256, 256)))
    assert sample is not None
    errors = {name: tried(name, sample)[1] for name in LOSSY}
    order = ["fp16", "bf16", "int8", "int4", "onebit"]
    assert [errors[name] for name in order] == sorted(errors[name] for name in order)
    # Of a normal distribution, a sign and a mean lose 1 - 2 / pi of the square.
    assert errors["onebit"] == pytest.approx((1 - 2 / torch.pi) ** 0.5, abs=0.02)


def test_tiny_gradients_are_no_trouble_for_fp16():
    sample = take_sample(view((64, 64), make=lambda numel: 1e-9 * torch.randn(numel)))
    assert sample is not None
    assert tried("fp16", sample)[1] < 1e-3


def test_low_rank_finds_a_matrix_of_low_rank():
    torch.manual_seed(0)
    matrix = torch.randn(80, 2) @ torch.randn(2, 50)
    sample = take_sample(BucketView(0, True, matrix.flatten(), [torch.zeros(80, 50)]))
    assert sample is not None
    assert tried("powersgd", sample)[1] < 1e-4


def test_sample_leaves_out_what_travels_exactly_and_keeps_within_its_limit():
    assert take_sample(view((64,), (10, 10))) is None
    sample = take_sample(view((64,), (2000, 300), (3000, 200)))
    assert sample is not None
    assert [matrix.num_rows for matrix in sample.matrices] == [2000, (MAX_ELEMENTS - 600_000) // 200]
    whole = view((64,), (2000, 300), (3000, 200)).buffer
    assert torch.equal(sample.flat, whole[64 : 64 + sample.flat.numel()])


def test_sample_is_a_copy():
    bucket = view((64, 64))
    sample = take_sample(bucket)
    assert sample is not None
    before = sample.flat.clone()
    bucket.buffer.zero_()
    assert torch.equal(sample.flat, before)


def test_norm_shares_tell_how_concentrated_a_gradient_is():
    even = take_sample(view((100, 100), make=torch.ones))
    assert even is not None
    assert norm_shares(even).tolist() == pytest.approx([0.1, 0.05**0.5, 0.5])
    spiky = view((100, 100), make=torch.zeros)
    spiky.buffer[::100] = 1.0
    sample = take_sample(spiky)
    assert sample is not None
    assert norm_shares(sample).tolist() == pytest.approx([1.0, 1.0, 1.0])
