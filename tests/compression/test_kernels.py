"""The compiled kernels against the references, bit for bit."""

import pytest
import torch
from gradwire_compression.buckets import pack
from gradwire_compression.codecs import registry
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.blocks import lane_sum, payload_bytes
from gradwire_compression.kernels.cast.reference import ReferenceCastKernels
from gradwire_compression.layout import Layout
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compression.samples import NAMES, SIZES, VALUE_BYTES, hard_values, layout_of, same_bits

CPU = torch.device("cpu")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)

pytestmark = pytest.mark.skipif(not dispatch.is_compiled(), reason="the compiled kernels are not built here")


def _kernels(name, num_kept=1):
    return dispatch.scaled_kernels(name, CPU, num_kept), dispatch.reference_kernels(name, num_kept)


def _encode(kernels, name, x, layout, residual, num_kept=1):
    value_bytes = num_kept if name == "topk" else VALUE_BYTES[name](layout.block)
    num_bytes = payload_bytes(layout.num_blocks, value_bytes, num_kept)
    payload = torch.full((num_bytes,), 0xAB, dtype=torch.uint8)
    new_residual = torch.full_like(residual, torch.nan)
    kernels.encode(x, layout, residual, payload, new_residual)
    return payload, new_residual


def _check_round_trip(name, x, layout, residual, num_kept=1):
    """Encode, decode and reduce with both; outputs are poisoned before."""
    fast, truth = _kernels(name, num_kept)
    payload, new_residual = _encode(fast, name, x, layout, residual, num_kept)
    wanted_payload, wanted_residual = _encode(truth, name, x, layout, residual, num_kept)
    assert torch.equal(payload, wanted_payload)
    assert same_bits(new_residual, wanted_residual)
    in_place = residual.clone()
    fast.encode(x, layout, in_place, payload, in_place)
    assert same_bits(in_place, wanted_residual)
    for weight, accumulate, dtype in ((1.0, False, x.dtype), (0.3, False, x.dtype), (0.3, True, torch.float32)):
        base = torch.linspace(-1, 1, x.numel()) if accumulate else torch.full((x.numel(),), torch.nan)
        out, wanted = base.to(dtype), base.to(dtype)
        fast.decode(payload, layout, out, weight, accumulate)
        truth.decode(payload, layout, wanted, weight, accumulate)
        assert same_bits(out, wanted)
    _check_reduce(name, x, layout, residual, payload, num_kept)


def _check_reduce(name, x, layout, residual, payload, num_kept):
    fast, truth = _kernels(name, num_kept)
    other, _ = _encode(truth, name, (x.float() * -0.7).to(x.dtype), layout, residual, num_kept)
    payloads = torch.stack([payload, other, payload])
    results = []
    for kernels in (fast, truth):
        final, owner = torch.full_like(payload, 0xCD), torch.full((layout.numel,), torch.nan)
        kernels.reduce(payloads, layout, residual * 0.5, final, owner)
        results.append((final, owner))
    assert torch.equal(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


@pytest.mark.parametrize("name", VALUE_BYTES)
@pytest.mark.parametrize("block", [64, 100, 256, 1024, 4096])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_kernel_equals_reference(name, block, size, dtype):
    x = hard_values(size + 3, seed=size, dtype=dtype)
    residual = hard_values(size, seed=size + 1) * 0.1
    _check_round_trip(name, x, layout_of(size, block, offset=3), residual)


@pytest.mark.parametrize("num_kept", [1, 3, 13, 64, 128])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_compiled_topk_equals_reference(num_kept, size, dtype):
    x = hard_values(size + 3, seed=size, dtype=dtype)
    residual = hard_values(size, seed=size + 1) * 0.1
    _check_round_trip("topk", x, layout_of(size, 256, offset=3), residual, num_kept)


@pytest.mark.parametrize("num_kept", [1, 13, 128])
@pytest.mark.parametrize("num_levels", [1, 2, 7, 40])
def test_compiled_topk_equals_reference_where_magnitudes_tie(num_kept, num_levels):
    generator = torch.Generator().manual_seed(num_levels)
    x = torch.randint(-num_levels, num_levels + 1, (5000,), generator=generator).float()
    _check_round_trip("topk", x, layout_of(5000, 256), torch.zeros(5000), num_kept)


def test_topk_sends_the_largest_and_of_equal_ones_the_first():
    x = torch.zeros(300)
    x[[5, 9, 17, 200, 255]] = torch.tensor([2.0, -3.0, 2.0, -2.0, 2.0])
    x[299] = 1.0
    kernels, _ = _kernels("topk", 3)
    payload, new_residual = _encode(kernels, "topk", x, layout_of(300, 256), torch.zeros(300), 3)
    # Three blocks, the last one empty: indices, padding to 16 bytes, then values.
    assert payload[:9].tolist() == [5, 9, 17, 0, 1, 43, 0, 0, 0]
    assert payload[16:34].view(torch.bfloat16).tolist() == [2.0, -3.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert new_residual.nonzero().flatten().tolist() == [200, 255]


@pytest.mark.parametrize("kernels", _kernels("topk", 3))
def test_topk_sends_what_rounds_to_zero_without_a_sign(kernels):
    x = torch.zeros(64)
    x[[3, 7]] = torch.tensor([1.0, -1e-45])
    payload, new_residual = _encode(kernels, "topk", x, layout_of(64, 64), torch.full((64,), -0.0), 3)
    assert payload[16:22].view(torch.int16).tolist() == [0, 0x3F80, 0]
    assert new_residual[7] == -1e-45


@pytest.mark.parametrize("name", NAMES)
def test_compiled_kernel_equals_reference_when_large(name):
    size = 1_000_003
    x, residual = torch.randn(size), torch.randn(size) * 0.01
    (parameter,) = registry.facts(name).parameters
    block, num_kept = (256, parameter.default) if name == "topk" else (parameter.default, 1)
    _check_round_trip(name, x, layout_of(size, block), residual, num_kept)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "value", [0.0, -0.0, 1e-45, -1e-40, 1e-38, 3.4e38, float("inf"), -float("inf"), float("nan")]
)
@pytest.mark.parametrize("where", ["everywhere", "once"])
def test_compiled_kernel_equals_reference_on_extremes(name, value, where):
    x = torch.full((1000,), value)
    if where == "once":
        x = torch.ones(1000)
        x[300] = value
    _check_round_trip(name, x, layout_of(1000, 256), torch.full((1000,), 0.25), 13 if name == "topk" else 1)


def test_int8_rounds_ties_to_even():
    x = torch.tensor([0.5, 1.5, 2.5, 126.5, -0.5, -1.5, -126.5, 127.0])
    layout = layout_of(8, 64)
    payload, _ = _encode(dispatch.scaled_kernels("int8", CPU), "int8", x, layout, torch.zeros(8))
    assert payload[:8].view(torch.int8).tolist() == [0, 2, 2, 126, 0, -2, -126, 127]


def test_int4_rounds_ties_to_even_and_packs_the_even_element_low():
    x = torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 6.5, 7.0])
    layout = layout_of(7, 64)
    payload, _ = _encode(dispatch.scaled_kernels("int4", CPU), "int4", x, layout, torch.zeros(7))
    # 0, 2, 2, -0, -2, 6, 7
    assert [f"{byte:02x}" for byte in payload[:4].tolist()] == ["20", "02", "6e", "07"]


def test_fp8_codes_are_the_e4m3_floats_that_they_stand_for():
    # The largest value makes the scale 1; the others are normal, denormal and a tie of each, the last is too small.
    x = torch.tensor([448.0, -1.0, 0.015625, 2**-9, -3 * 2**-9, 17.0, 19.0, 2**-10, 3 * 2**-10, 2**-11])
    payload, _ = _encode(dispatch.scaled_kernels("fp8", CPU), "fp8", x, layout_of(10, 64), torch.zeros(10))
    assert bytes(payload[:10].tolist()).hex() == "7eb808018358" + "5a000200"
    decoded = torch.empty(10)
    dispatch.scaled_kernels("fp8", CPU).decode(payload, layout_of(10, 64), decoded, 1.0, False)
    assert decoded.tolist() == [448.0, -1.0, 0.015625, 2**-9, -3 * 2**-9, 16.0, 20.0, 0.0, 2**-8, 0.0]


def _assert_same_payload(name, x, layout):
    fast, truth = _kernels(name)
    residual = torch.zeros(layout.numel)
    assert torch.equal(*(_encode(kernels, name, x, layout, residual)[0] for kernels in (fast, truth)))


@pytest.mark.parametrize("length", [63, 255, 1000, 1024])
def test_onebit_scale_is_the_same_where_the_order_of_summation_decides(length):
    # Means within a few units of a bf16 rounding tie: another order, or a product by 1 / n, rounds many apart.
    magnitudes = torch.rand(300, length, generator=torch.Generator().manual_seed(length)) + 0.5
    magnitudes[:, 0] += 5
    for _ in range(4):
        mean = lane_sum(magnitudes) / length
        below = (mean.view(torch.int32) & -65536).view(torch.float32)
        above = (below.view(torch.int32) + 65536).view(torch.float32)
        magnitudes[:, 0] += ((below + above) / 2 - mean) * length
    block = -(-length // 64) * 64
    slots = pack((str(index), length) for index in range(300))
    _assert_same_payload("onebit", magnitudes.flatten(), Layout.build(slots, block))


@pytest.mark.parametrize(("name", "limit"), [("int8", 127), ("int4", 7)])
def test_codes_are_the_same_where_the_division_decides(name, limit):
    scales = torch.rand(300, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).to(torch.float32) + 1e-3
    scales = scales.to(torch.bfloat16).to(torch.float32)
    ties = torch.cat([torch.arange(1 - limit, limit) + 0.5, torch.tensor([float(limit)])])
    slots = pack((str(index), ties.numel()) for index in range(300))
    _assert_same_payload(name, (ties * scales[:, None]).flatten(), Layout.build(slots, ties.numel()))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    block=st.integers(64, 4096),
    num_kept=st.integers(1, 128),
    size=st.integers(1, 3000),
    scale=st.floats(-44, 38),
    data=st.data(),
)
def test_compiled_kernel_equals_reference_on_any_input(name, block, num_kept, size, scale, data):
    x = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 10.0**scale
    spoiled = data.draw(st.lists(st.tuples(st.integers(0, size - 1), st.floats(width=32)), max_size=5))
    for index, value in spoiled:
        x[index] = value
    block, num_kept = (256, num_kept) if name == "topk" else (block, 1)
    _check_round_trip(name, x, layout_of(size, block), torch.randn(size) * 10.0**scale, num_kept)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
@pytest.mark.parametrize(
    ("name", "exponent"), [("bf16", 0), ("fp16", 0), ("fp16", -9), ("fp16", 40), ("fp16", -115)]
)
def test_compiled_cast_equals_reference(size, dtype, world_size, name, exponent):
    x = hard_values(size + 3, seed=size, dtype=dtype)
    if size == 1000:
        x[400:500] = torch.nan
        x[600:800] = 0
    _check_cast(x, layout_of(size, 64, offset=3), hard_values(size, seed=7) * 0.1, world_size, name, exponent)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_compiled_cast_equals_reference_when_large(name):
    size = 1_000_003
    _check_cast(torch.randn(size), layout_of(size, 1024), torch.randn(size) * 0.01, 2, name, 0)


def _check_cast(x, layout, residual, world_size, name, exponent):
    results, exponent = [], torch.tensor([exponent], dtype=torch.int32)
    for kernels in (dispatch.cast_kernels(name, CPU), ReferenceCastKernels()):
        wire = torch.full((layout.numel,), torch.nan, dtype=CastCodec(name, CPU).dtype)
        new_residual, largest = torch.full((layout.numel,), torch.nan), torch.full((1,), torch.nan)
        kernels.encode(x, layout, residual, wire, new_residual, world_size, exponent, largest)
        out = torch.full((x.numel(),), 5.0, dtype=x.dtype)
        kernels.decode(wire, layout, out, exponent)
        results.append((wire, new_residual, largest, out))
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))
