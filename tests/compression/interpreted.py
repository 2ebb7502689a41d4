"""The Triton kernels in Triton's interpreter against the references, bit for bit: `python interpreted.py CODEC`.

A process of its own, because Triton reads TRITON_INTERPRET when a kernel is defined.
"""

import sys

import torch
from gradwire_compression.buckets import pack
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.kernels import cuda, dispatch
from gradwire_compression.kernels.blocks import lane_sum, payload_bytes
from gradwire_compression.kernels.cast.reference import ReferenceCastKernels
from gradwire_compression.layout import Layout

from tests.compression.samples import SIZES, hard_values, layout_of, same_bits

CPU = torch.device("cpu")
# Block and offset: whole lanes and aligned, neither, and the largest that onebit keeps in registers.
SHAPES = ((256, 0), (100, 3), (1024, 4))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EXTREMES = (0.0, -0.0, 1e-45, -1e-40, 1e-38, 3.4e38, float("inf"), -float("inf"), float("nan"))


# The largest block of topk, and how many elements of a block it sends in turn.
TOPK_BLOCK = 256
KEPT = (13, 1, 64)

# The interpreter's time goes by programs, whatever their size; large vectors still take several.
cuda._NUM_THREADS *= 4


def encode(kernels, name, x, layout, residual, num_scales, is_in_place=False):
    """Return (payload, new residual); both are poisoned before."""
    value_bytes = dispatch.value_bytes(name, layout.block, num_scales)
    size = payload_bytes(layout.num_blocks, value_bytes, num_scales)
    payload = torch.full((size,), 0xAB, dtype=torch.uint8)
    new_residual = residual.clone() if is_in_place else torch.full_like(residual, torch.nan)
    kernels.encode(x, layout, new_residual if is_in_place else residual, payload, new_residual)
    return payload, new_residual


def check_scaled(name, x, layout, residual, num_scales):
    fast, truth = cuda.TritonKernels(name, num_scales), dispatch.reference_kernels(name, num_scales)
    wanted = encode(truth, name, x, layout, residual, num_scales)
    for is_in_place in (False, True):
        got = encode(fast, name, x, layout, residual, num_scales, is_in_place)
        assert torch.equal(got[0], wanted[0]), "payload"
        assert same_bits(got[1], wanted[1]), "residual"
    payload = wanted[0]
    for weight, is_added, dtype in ((1.0, False, x.dtype), (0.3, False, x.dtype), (0.3, True, torch.float32)):
        start = torch.linspace(-1, 1, x.numel()) if is_added else torch.full((x.numel(),), torch.nan)
        outs = [start.to(dtype), start.to(dtype)]
        for kernels, out in zip((fast, truth), outs, strict=True):
            kernels.decode(payload, layout, out, weight, is_added)
        assert same_bits(*outs), f"decoded with weight {weight}"
    other, _ = encode(truth, name, (x.float() * -0.7).to(x.dtype), layout, residual, num_scales)
    for payloads in (torch.stack([payload, other, payload]), payload[None]):
        means = [(torch.full_like(payload, 0xCD), torch.full((layout.numel,), torch.nan)) for _ in range(2)]
        for kernels, (mean, owner) in zip((fast, truth), means, strict=True):
            kernels.reduce(payloads, layout.compact(), residual * 0.5, mean, owner)
        assert torch.equal(means[0][0], means[1][0]), "mean"
        assert same_bits(means[0][1], means[1][1]), "owner's residual"


def check_shards(name, x, layout, residual, num_scales):
    """Two shards, an empty block in the last, encoded and decoded at once; then taken back, and not."""
    codec = ScaledCodec(name, layout.block, CPU, num_scales)
    shards = layout.deal(0, layout.num_blocks // 2 + 1, 2)
    results = []
    for kernels in (cuda.TritonKernels(name, num_scales), dispatch.reference_kernels(name, num_scales)):
        codec._kernels = kernels
        payloads = torch.full((2, codec.wire_bytes(layout.num_blocks // 2 + 1)), 0xAB, dtype=torch.uint8)
        new, out = residual.clone(), torch.full_like(x, 5.0)
        codec.encode_shards(x, shards, new, payloads)
        codec.decode_shards(payloads, shards, out)
        kept, back = new.clone(), new.clone()
        undo = torch.full((layout.numel,), torch.nan)
        codec.take_back(torch.tensor(True), payloads, shards, kept, x, undo)
        codec.take_back(torch.tensor(False), payloads, shards, back, x, undo)
        results.append((payloads, new, out, kept, back))
    for what, one, other in zip(("payloads", "residual", "out", "kept", "taken back"), *results, strict=True):
        assert same_bits(one, other), f"shards: {what}"


def check_warm_up(name):
    """What an attach runs on an accelerator."""
    if name in cuda.CASTS:
        codec = CastCodec(name, CPU)
        codec._kernels = cuda.TritonCastKernels(name)
    else:
        codec = ScaledCodec(name, TOPK_BLOCK, CPU, num_scales_of(name, 0))
        codec._kernels = cuda.TritonKernels(name, codec.num_scales)
    codec.warm_up(CPU, DTYPES)


def num_scales_of(name, turn):
    return KEPT[turn % len(KEPT)] if name == "topk" else 1


def check_cast(name, x, layout, residual, world_size, exponent):
    results = []
    for kernels in (cuda.TritonCastKernels(name), ReferenceCastKernels()):
        power, largest = torch.tensor([exponent], dtype=torch.int32), torch.full((1,), torch.nan)
        wire = torch.full((layout.numel,), torch.nan, dtype=torch.bfloat16 if name == "bf16" else torch.float16)
        new_residual = torch.full((layout.numel,), torch.nan)
        kernels.encode(x, layout, residual, wire, new_residual, world_size, power, largest)
        out = torch.full_like(x, 5.0)
        kernels.decode(wire, layout, out, power)
        kept, back, undo = new_residual.clone(), new_residual.clone(), torch.full((layout.numel,), torch.nan)
        kernels.take_back(torch.tensor(True), wire, layout, kept, x, undo, world_size, power)
        kernels.take_back(torch.tensor(False), wire, layout, back, x, undo, world_size, power)
        noted = largest if name == "fp16" else torch.zeros(1)
        results.append((wire, new_residual, out, noted, kept, back))
    parts = ("wire", "residual", "out", "largest", "kept", "taken back")
    for what, one, other in zip(parts, *results, strict=True):
        assert same_bits(one, other), what


def check(name, x, layout, residual):
    if name in cuda.CASTS:
        for world_size, exponent in ((1, 0), (3, 0)) if name == "bf16" else ((1, 0), (3, -9), (6, 100), (2, -115)):
            check_cast(name, x, layout, residual, world_size, exponent)
        return
    num_scales = num_scales_of(name, x.numel())
    check_scaled(name, x, layout, residual, num_scales)
    # Of the sizes one, and of the extremes those that are not finite.
    if layout.numel == 1000 or not x.isfinite().all():
        check_shards(name, x, layout, residual, num_scales)


def means_near_ties():
    """Gradients whose means lie at a rounding tie of bfloat16, where another order of summation rounds apart."""
    magnitudes = torch.rand(64, 1000, generator=torch.Generator().manual_seed(1)) + 0.5
    magnitudes[:, 0] += 5
    for _ in range(4):
        mean = lane_sum(magnitudes) / 1000
        below = (mean.view(torch.int32) & -65536).view(torch.float32)
        above = (below.view(torch.int32) + 65536).view(torch.float32)
        magnitudes[:, 0] += ((below + above) / 2 - mean) * 1000
    return magnitudes.flatten(), Layout.build(pack((str(index), 1000) for index in range(64)), 1024)


def ties_of(name):
    """Midpoints of a codec's neighbouring codes, and the largest code."""
    if name == "int4":
        return torch.cat([torch.arange(-7, 7) + 0.5, torch.tensor([7.0])])
    if name == "fp8":
        codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).to(torch.float32)
        middles = (codes[1:] + codes[:-1]) / 2
        return torch.cat([middles, -middles, codes[-1:]])
    return torch.cat([torch.arange(-126, 127) + 0.5, torch.tensor([127.0])])


def codes_near_ties(name):
    """Gradients whose quotients by the scale are ties, where a product by 1 / scale rounds apart."""
    scales = torch.rand(64, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).to(torch.float32) + 1e-3
    scales = scales.to(torch.bfloat16).to(torch.float32)
    codes = ties_of(name)
    block = len(codes)
    layout = Layout.build(pack((str(index), block) for index in range(64)), block)
    return (codes * scales[:, None]).flatten(), layout


def few_magnitudes():
    """Gradients most of which are as large as others of their block, and short blocks behind full ones."""
    levels = torch.randint(-4, 5, (3000,), generator=torch.Generator().manual_seed(2))
    sizes = (1000, 5, 64, 300, 1631)
    return levels.to(torch.float32), Layout.build(pack((str(size), size) for size in sizes), TOPK_BLOCK)


def hard_cases(name):
    if name == "topk":
        return (few_magnitudes(),)
    return means_near_ties(), codes_near_ties(name)


def main(name):
    largest_block = TOPK_BLOCK if name == "topk" else 4096
    # Each size meets each dtype and each shape: the interpreter is too slow for all triples.
    for index, size in enumerate(SIZES):
        for turn, dtype in enumerate(DTYPES):
            block, offset = SHAPES[(index + turn) % len(SHAPES)]
            x = hard_values(size + offset, seed=size, dtype=dtype)
            layout = layout_of(size, min(block, largest_block), offset)
            check(name, x, layout, hard_values(size, seed=size + 1) * 0.1)
    for value in EXTREMES:
        x = torch.ones(300)
        # One block is all of that value, the other holds it once.
        x[:130] = value
        check(name, x, layout_of(300, 128), torch.full((300,), 0.25))
    check(name, hard_values(4097), layout_of(4097, largest_block), torch.zeros(4097))
    for x, layout in hard_cases(name):
        check(name, x, layout, torch.zeros(layout.numel))
    check_warm_up(name)
    print("equal")


if __name__ == "__main__":
    main(sys.argv[1])
