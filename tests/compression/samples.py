"""Gradients that codecs find hard."""

import torch
from gradwire_compression.buckets import pack
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.layout import Layout

SIZES = (1, 7, 63, 255, 1000, 4097)

# Every codec with a scale a block: the bytes that the values of one block take.
VALUE_BYTES = {
    "int8": lambda block: block,
    "fp8": lambda block: block,
    "int4": lambda block: -(-block // 2),
    "onebit": lambda block: -(-block // 8),
}

# Every codec of blocks.
NAMES = (*VALUE_BYTES, "topk")


def codec_of(name, block):
    """A codec of blocks on CPU tensors; topk keeps a twentieth of its own blocks."""
    device = torch.device("cpu")
    return ScaledCodec("topk", 256, device, num_scales=13) if name == "topk" else ScaledCodec(name, block, device)


def hard_values(num_elements, seed=0, dtype=torch.float32):
    """Normal values with zeros of both signs, denormals, ties, huge and tiny ones strewn in."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(num_elements, generator=generator)
    specials = torch.tensor([0.0, -0.0, 1e-45, -1e-40, 1e-38, 0.5, 1.5, 2.5, -0.5, 127.0, 1e30, -1e-30, 64.0])
    where = torch.rand(num_elements, generator=generator) < 0.2
    chosen = torch.randint(len(specials), (num_elements,), generator=generator)
    return torch.where(where, specials[chosen], values).to(dtype)


def layout_of(num_elements, block, offset=0):
    """One tensor of `num_elements` that begins at `offset` of its bucket, and an empty block at the end."""
    slots = pack([("before", offset), ("tensor", num_elements)])[1:]
    whole = Layout.build(slots, block)
    return whole.shard(0, whole.num_blocks + 1)


def same_bits(one, other):
    """Whether two tensors hold equal bits, any NaN being as good as another."""
    if one.is_floating_point():
        is_nan = one.isnan()
        if not torch.equal(is_nan, other.isnan()):
            return False
        kind = {4: torch.int32, 2: torch.int16}[one.element_size()]
        one, other = one.view(kind).masked_fill(is_nan, 0), other.view(kind).masked_fill(is_nan, 0)
    return torch.equal(one, other)
