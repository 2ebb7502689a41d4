"""Encode, decode and reduce of codecs whose scale is the largest magnitude of the block, as Triton kernels.

A codec brings four functions of tiles: SCALE (largest magnitudes to scales), CODE (sums and scales to codes,
float32), PACK (codes to the bytes of the payload) and UNPACK (bytes to codes). A value is code * scale.
"""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import (
    block_places,
    magnitudes,
    payload_parts,
    read,
    read_scales,
    settle_scale,
    unless,
    write,
    write_padding,
)


@triton.jit
def _encode_tile(gradient, old, SCALE: tl.constexpr, CODE: tl.constexpr):
    """Return (codes, bfloat16 bits of the scales, new residual) of a tile."""
    is_zero = tl.max(magnitudes(gradient), axis=1) == 0
    sums = gradient + old
    largest = tl.max(magnitudes(sums), axis=1).to(tl.float32, bitcast=True)
    half, is_sent, is_kept = settle_scale(SCALE(largest), is_zero)
    scale = tl.where(is_sent, (half << 16).to(tl.float32, bitcast=True), 1.0)
    codes = CODE(tl.where(is_sent[:, None], sums, 0.0), scale[:, None])
    new = tl.where(is_sent[:, None], sums - codes * scale[:, None], sums)
    return codes, half, tl.where(is_kept[:, None], old, new)


@triton.jit
def _write_tile(codes, half, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                PACK: tl.constexpr, VALUE_BYTES: tl.constexpr, VALUE_COLUMNS: tl.constexpr):  # fmt: skip
    values, scales = payload_parts(payload, rows, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)
    column = tl.arange(0, VALUE_COLUMNS)
    is_real = rows < num_blocks
    mask = is_real[:, None] & (column < VALUE_BYTES)
    tl.store(values[:, None] + column, PACK(codes), mask=mask)
    tl.store(scales, half.to(tl.int16), mask=is_real)
    write_padding(payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)


@triton.jit
def _read_tile(payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
               UNPACK: tl.constexpr, VALUE_BYTES: tl.constexpr, VALUE_COLUMNS: tl.constexpr):  # fmt: skip
    """Return the values of a tile, float32."""
    values, scales = payload_parts(payload, rows, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)
    column = tl.arange(0, VALUE_COLUMNS)
    is_real = rows < num_blocks
    packed = tl.load(values[:, None] + column, mask=is_real[:, None] & (column < VALUE_BYTES), other=0)
    return UNPACK(packed) * read_scales(scales, is_real)[:, None]


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def encode(x, table, num_blocks, residual, new_residual, payload, shard_blocks, shard_bytes, scales_begin,
           SCALE: tl.constexpr, CODE: tl.constexpr, PACK: tl.constexpr,
           VALUE_BYTES: tl.constexpr, VALUE_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Encode x + residual, ROWS blocks a program; see `ScaledCodec.encode`."""
    rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    gradient = read(x + offsets[:, None] + column, mask)
    old = tl.load(residual + places[:, None] + column, mask=mask, other=0.0)
    codes, half, new = _encode_tile(gradient, old, SCALE, CODE)
    tl.store(new_residual + places[:, None] + column, new, mask=mask)
    _write_tile(codes, half, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                PACK, VALUE_BYTES, VALUE_COLUMNS)  # fmt: skip


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def decode(payload, table, num_blocks, out, weight, is_clean, shard_blocks, shard_bytes, scales_begin,
           UNPACK: tl.constexpr, IS_ADDED: tl.constexpr, IS_UNDO: tl.constexpr,
           VALUE_BYTES: tl.constexpr, VALUE_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Write or add weight * value, ROWS blocks a program; see `ScaledCodec.decode`."""
    if IS_UNDO:
        num_blocks = unless(is_clean, num_blocks)
    rows, offsets, _, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    values = weight * _read_tile(payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                                 UNPACK, VALUE_BYTES, VALUE_COLUMNS)  # fmt: skip
    pointers = out + offsets[:, None] + column
    if IS_ADDED:
        values = read(pointers, mask) + values
    write(pointers, values, mask)


@triton.jit(do_not_specialize=["num_ranks", "num_blocks", "shard_blocks"])
def reduce(payloads, rank_stride, num_ranks, table, num_blocks, residual, new_residual, payload, shard_blocks,
           shard_bytes, scales_begin,
           SCALE: tl.constexpr, CODE: tl.constexpr, PACK: tl.constexpr, UNPACK: tl.constexpr,
           VALUE_BYTES: tl.constexpr, VALUE_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Encode the mean of the ranks' payloads, ROWS blocks a program; see `ScaledCodec.reduce`."""
    rows, _, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    # Adding to -0 gives the first rank's value itself, the sign of a zero included.
    total = tl.full([ROWS, COLUMNS], -0.0, tl.float32)
    for _ in range(num_ranks):
        total += _read_tile(payloads, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                            UNPACK, VALUE_BYTES, VALUE_COLUMNS)  # fmt: skip
        payloads += rank_stride
    gradient = tl.where(mask, tl.div_rn(total, num_ranks.to(tl.float32)), 0.0)
    old = tl.load(residual + places[:, None] + column, mask=mask, other=0.0)
    codes, half, new = _encode_tile(gradient, old, SCALE, CODE)
    tl.store(new_residual + places[:, None] + column, new, mask=mask)
    _write_tile(codes, half, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                PACK, VALUE_BYTES, VALUE_COLUMNS)  # fmt: skip
