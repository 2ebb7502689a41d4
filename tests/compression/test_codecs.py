"""What every scaled codec promises, whichever kernels run it."""

import pytest
import torch
from gradwire_compression.codecs import registry
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.facts import CodecFacts
from gradwire_compression.codecs.registry import facts
from gradwire_compression.kernels.undo.reference import restore
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compression.samples import NAMES, SIZES, VALUE_BYTES, codec_of, hard_values, layout_of

CPU = torch.device("cpu")


def _encode(codec, x, layout, residual):
    payload = torch.full((codec.wire_bytes(layout.num_blocks),), 0xEE, dtype=torch.uint8)
    codec.encode(x, layout, residual, payload)
    return payload


def _decoded(codec, payload, layout):
    out = torch.full((layout.numel,), torch.nan)
    codec.decode(payload, layout.compact(), out)
    return out


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_decoded_plus_new_residual_is_gradient_plus_old_residual(name, size):
    codec = codec_of(name, 256)
    x, old = torch.randn(size), torch.randn(size) * 0.1
    new = old.clone()
    decoded = _decoded(codec, _encode(codec, x, layout_of(size, 256), new), layout_of(size, 256))
    assert torch.allclose(decoded.double() + new, x.double() + old, rtol=0, atol=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    block=st.integers(64, 4096),
    size=st.integers(1, 5000),
    offset=st.integers(0, 9),
)
def test_payload_has_exactly_wire_bytes_and_equal_input_gives_equal_bytes(name, block, size, offset):
    codec = codec_of(name, block)
    x, layout = hard_values(size + offset, seed=size), layout_of(size, codec.block, offset)
    payload = _encode(codec, x, layout, torch.zeros(size))
    num_blocks = -(-size // codec.block) + 1
    values, scales = (13, 13) if name == "topk" else (VALUE_BYTES[name](block), 1)
    assert payload.numel() == -(-num_blocks * values // 16) * 16 + -(-num_blocks * scales * 2 // 16) * 16
    again = torch.full_like(payload, 0x11)
    codec.encode(x, layout, torch.zeros(size), again)
    assert torch.equal(payload, again)


@pytest.mark.parametrize("name", [*NAMES, "bf16", "fp16"])
def test_bits_per_element_are_those_of_a_full_block(name):
    known: CodecFacts = facts(name)
    if name in ("bf16", "fp16"):
        assert CastCodec(name, CPU).wire_bytes(1000) * 8 / 1000 == known.bits_per_element
        return
    codec = registry.make(name, {parameter.name: parameter.default for parameter in known.parameters}, CPU)
    assert codec.wire_bytes(800) * 8 / (800 * codec.block) == known.bits_per_element


@pytest.mark.parametrize("name", NAMES)
def test_zero_gradient_sends_zero_and_keeps_the_residual(name):
    codec = codec_of(name, 64)
    block = codec.block
    x = torch.cat([torch.zeros(block), torch.ones(block), -torch.zeros(10)])
    old = torch.full((2 * block + 10,), 0.3)
    new = old.clone()
    layout = layout_of(old.numel(), block)
    decoded = _decoded(codec, _encode(codec, x, layout, new), layout)
    assert not decoded[:block].any()
    assert not decoded[2 * block :].any()
    assert int((decoded[block : 2 * block] != 0).sum()) == (13 if name == "topk" else block)
    assert torch.equal(new[:block], old[:block])
    assert torch.equal(new[2 * block :], old[2 * block :])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_nonfinite_block_is_sent_as_nan_and_keeps_the_residual(name, bad):
    codec = codec_of(name, 64)
    block = codec.block
    x, old = torch.randn(4 * block - 5), torch.randn(4 * block - 5)
    x[block + 6] = bad
    new = old.clone()
    layout = layout_of(x.numel(), block)
    payload = _encode(codec, x, layout, new)
    decoded = _decoded(codec, payload, layout)
    assert decoded[block : 2 * block].isnan().all()
    assert decoded[:block].isfinite().all()
    assert torch.equal(new[block : 2 * block], old[block : 2 * block])
    are_finite = codec.are_finite(payload[None], layout.num_blocks)
    assert are_finite.tolist() == [[True, False, True, True, True]]


@pytest.mark.parametrize("name", NAMES)
def test_residual_is_restored_right_to_rounding(name):
    codec = codec_of(name, 64)
    block, size = codec.block, 8 * codec.block - 15
    x, old = torch.randn(size + 3), torch.randn(size)
    x[10:12] = torch.nan
    x[block + 3 : 2 * block + 3] = 0
    layout, new = layout_of(size, block, offset=3), old.clone()
    payload = _encode(codec, x, layout, new)
    restore(new, layout, _decoded(codec, payload, layout), x)
    assert torch.allclose(new, old, rtol=0, atol=1e-5)
    assert torch.equal(new[: 2 * block], old[: 2 * block])


@pytest.mark.parametrize("value", [1e-40, 1e-45, 3e38])
@pytest.mark.parametrize("name", NAMES)
def test_tiny_and_huge_gradients_neither_vanish_into_nan_nor_grow(name, value):
    codec = codec_of(name, 64)
    x, layout = torch.full((64,), value), layout_of(64, codec.block)
    payload = _encode(codec, x, layout, torch.zeros(64))
    decoded = _decoded(codec, payload, layout).double()
    if value < 1 or name != "onebit":
        assert decoded.isfinite().all()
        assert float(decoded.abs().max()) <= 2 * value
    else:
        # The sum of 64 such magnitudes overflows, which must be seen.
        assert decoded.isnan().all()


@pytest.mark.parametrize(("name", "limit"), [("int8", 127), ("int4", 7), ("fp8", 14)])
def test_codes_do_not_clip_the_largest_value(name, limit):
    codec, layout = ScaledCodec(name, 64, CPU), layout_of(64, 64)
    for seed in range(50):
        x = torch.randn(64, generator=torch.Generator().manual_seed(seed))
        new = torch.zeros(64)
        _encode(codec, x, layout, new)
        step = x.abs().max() / limit
        assert float(new.abs().max()) <= 0.51 * float(step) * 1.01


@pytest.mark.parametrize("name", VALUE_BYTES)
def test_one_giant_value_harms_its_own_block_only(name):
    codec, layout = ScaledCodec(name, 256, CPU), layout_of(4096, 256)
    x = torch.full((4096,), 1e-3)
    x[7] = 1e4
    decoded = _decoded(codec, _encode(codec, x, layout, torch.zeros(4096)), layout)
    assert torch.allclose(decoded[256:], x[256:], rtol=0.01)


def test_topk_sends_every_element_in_the_end():
    codec, layout = codec_of("topk", 256), layout_of(1000, 256)
    x, residual = torch.linspace(0.5, 1.5, 1000), torch.zeros(1000)
    sent, num_steps = torch.zeros(1000, dtype=torch.float64), 400
    for _ in range(num_steps):
        sent += _decoded(codec, _encode(codec, x, layout, residual), layout)
    assert torch.allclose(sent / num_steps, x.double(), rtol=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "exponent"), [("bf16", 0), ("fp16", 0), ("fp16", 11), ("fp16", -8)])
def test_cast_conserves_and_keeps_what_it_lost(dtype, name, exponent):
    codec, layout = CastCodec(name, CPU), layout_of(3000, 1024)
    x, old = torch.randn(3000).to(dtype), torch.randn(3000) * 1e-3
    new, wire, largest = old.clone(), torch.empty(3000, dtype=codec.dtype), torch.empty(1)
    power = torch.tensor([exponent], dtype=torch.int32)
    codec.encode(x, layout, new, wire, 3, power, largest)
    assert torch.allclose(wire.double() * 3 / 2**exponent + new, x.double() + old, rtol=0, atol=1e-6)
    assert float(largest) == float((x.float() + old).abs().max())
    out = torch.full((3000,), torch.nan, dtype=dtype)
    codec.decode(wire, layout, out, power)
    assert torch.equal(out, (wire.float() / 2**exponent).to(dtype))


def test_largest_magnitude_ignores_what_is_not_sent_or_not_finite():
    codec, layout = CastCodec("fp16", CPU), layout_of(4 * 1024, 1024)
    x, residual = torch.ones(4 * 1024), torch.zeros(4 * 1024)
    x[5], x[1024], x[1025] = 9e4, torch.inf, 1e6
    x[2 * 1024 : 3 * 1024] = 0
    residual[2 * 1024] = 1e7
    wire, largest = torch.empty(4 * 1024, dtype=torch.float16), torch.empty(1)
    codec.encode(x, layout, residual, wire, 1, torch.zeros(1, dtype=torch.int32), largest)
    # What overflows the cast alone counts: that is how the next exponent learns of it.
    assert float(largest) == 9e4
    assert wire[5].isinf()
