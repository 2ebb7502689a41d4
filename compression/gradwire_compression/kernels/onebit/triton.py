"""onebit as Triton kernels: scale = mean |v| in the defined order of summation, one sign bit an element.

A block is worked on in turns of its 32 lanes, so that a lane adds within one thread. `encode` holds all turns in
registers and reads every block once; `encode_large`, for blocks that do not fit, and `reduce`, whose input is
small, go through the turns twice.
"""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import (
    MAGNITUDE,
    bits_of,
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

NUM_LANES = tl.constexpr(32)
# Turns in flight together where all of them are too many.
UNROLLED = tl.constexpr(4)


@triton.jit
def _add_halves(lanes, ROWS: tl.constexpr):
    """Return the sum of 32 lanes by halves; a sum of two has no order."""
    half = tl.sum(tl.reshape(lanes, [ROWS, 2, 16]), axis=1)
    half = tl.sum(tl.reshape(half, [ROWS, 2, 8]), axis=1)
    half = tl.sum(tl.reshape(half, [ROWS, 2, 4]), axis=1)
    half = tl.sum(tl.reshape(half, [ROWS, 2, 2]), axis=1)
    return tl.sum(half, axis=1)


@triton.jit
def _store_words(pointers, words, is_real, VALUE_BYTES: tl.constexpr, WORD_COLUMNS: tl.constexpr):
    """Store a tile of words, the lowest byte first; a block's field may end within a word."""
    column = tl.arange(0, WORD_COLUMNS)
    if VALUE_BYTES % 4 == 0:
        target = pointers.to(tl.pointer_type(tl.int32))[:, None] + column
        tl.store(target, words, mask=is_real[:, None] & (column < VALUE_BYTES // 4))
    else:
        for index in tl.static_range(4):
            place = 4 * column + index
            byte = ((words >> (8 * index)) & 0xFF).to(tl.uint8)
            tl.store(pointers[:, None] + place, byte, mask=is_real[:, None] & (place < VALUE_BYTES))


@triton.jit
def _load_word(pointers, turn, is_real, VALUE_BYTES: tl.constexpr):
    """Return the sign bits of one turn of each row, as int32."""
    if VALUE_BYTES % 4 == 0:
        mask = is_real & (4 * turn < VALUE_BYTES)
        word = tl.load(pointers.to(tl.pointer_type(tl.int32)) + turn, mask=mask, other=0)
    else:
        word = tl.zeros(is_real.shape, tl.int32)
        for index in tl.static_range(4):
            mask = is_real & (4 * turn + index < VALUE_BYTES)
            word |= tl.load(pointers + 4 * turn + index, mask=mask, other=0).to(tl.int32) << (8 * index)
    return word


@triton.jit
def _signed(word, scale_bits):
    """Return plus or minus the scale for each lane, by the bits of its row's word."""
    negative = (word[:, None] >> tl.arange(0, NUM_LANES)) << 31
    return (negative | scale_bits[:, None]).to(tl.float32, bitcast=True)


@triton.jit
def _count(sums, turn, lanes, words, WORD_COLUMNS: tl.constexpr):
    """Return (lanes, words) with one turn's magnitudes and sign bits; beyond a block's end sums are zero."""
    lanes += magnitudes(sums).to(tl.float32, bitcast=True)
    word = tl.sum(((bits_of(sums) >> 31) & 1) << tl.arange(0, NUM_LANES), axis=1)
    return lanes, tl.where(tl.arange(0, WORD_COLUMNS) == turn, word[:, None], words)


@triton.jit
def _settle(lanes, seen, lengths, ROWS: tl.constexpr):
    """Return what `settle_scale` does; `seen` is the OR of the gradient's magnitudes by lane."""
    # An empty block has no mean; it is zero anyway.
    mean = tl.div_rn(_add_halves(lanes, ROWS), tl.maximum(lengths, 1).to(tl.float32))
    return settle_scale(mean, tl.max(seen, axis=1) == 0)


@triton.jit
def _write_residual(sums, turn, half, is_sent, is_kept, places, lengths, residual, new_residual):
    """Write what one turn leaves over."""
    lane = NUM_LANES * turn + tl.arange(0, NUM_LANES)
    mask = lane < lengths[:, None]
    signs = bits_of(sums) & ~MAGNITUDE
    decoded = (signs | (half << 16)[:, None]).to(tl.float32, bitcast=True)
    new = tl.where(is_sent[:, None], sums - decoded, sums)
    # What is kept is read again: it is rare, and would take as many registers as the sums.
    old = tl.load(residual + places[:, None] + lane, mask=mask & is_kept[:, None], other=0.0)
    tl.store(new_residual + places[:, None] + lane, tl.where(is_kept[:, None], old, new), mask=mask)


@triton.jit
def _write_payload(words, half, is_sent, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                   VALUE_BYTES: tl.constexpr, WORD_COLUMNS: tl.constexpr):  # fmt: skip
    values, scales = payload_parts(payload, rows, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)
    sent = tl.where(is_sent[:, None], words, 0)
    _store_words(values, sent, rows < num_blocks, VALUE_BYTES, WORD_COLUMNS)
    tl.store(scales, half.to(tl.int16), mask=rows < num_blocks)
    write_padding(payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)


@triton.jit
def _read_turn(x, turn, offsets, places, lengths, residual):
    """Return (gradient, gradient + residual) of one turn."""
    lane = NUM_LANES * turn + tl.arange(0, NUM_LANES)
    mask = lane < lengths[:, None]
    gradient = read(x + offsets[:, None] + lane, mask)
    return gradient, gradient + tl.load(residual + places[:, None] + lane, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def encode(x, table, num_blocks, residual, new_residual, payload, shard_blocks, shard_bytes, scales_begin,
           TURNS: tl.constexpr, VALUE_BYTES: tl.constexpr, WORD_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Encode x + residual, ROWS blocks a program, all of them in registers; see `ScaledCodec.encode`."""
    rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    seen = tl.zeros([ROWS, NUM_LANES], tl.int32)
    lanes = tl.zeros([ROWS, NUM_LANES], tl.float32)
    words = tl.zeros([ROWS, WORD_COLUMNS], tl.int32)
    held = ()
    for turn in tl.static_range(TURNS):
        gradient, sums = _read_turn(x, turn, offsets, places, lengths, residual)
        seen |= magnitudes(gradient)
        lanes, words = _count(sums, turn, lanes, words, WORD_COLUMNS)
        held = held + (sums,)  # type: ignore[assignment]
    half, is_sent, is_kept = _settle(lanes, seen, lengths, ROWS)
    for turn in tl.static_range(TURNS):
        _write_residual(held[turn], turn, half, is_sent, is_kept, places, lengths, residual, new_residual)
    _write_payload(words, half, is_sent, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                   VALUE_BYTES, WORD_COLUMNS)  # fmt: skip


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def encode_large(x, table, num_blocks, residual, new_residual, payload, shard_blocks, shard_bytes, scales_begin,
                 TURNS: tl.constexpr, VALUE_BYTES: tl.constexpr, WORD_COLUMNS: tl.constexpr,
                 ROWS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Do what `encode` does, reading x and residual twice; the second time mostly from the cache."""
    rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    seen = tl.zeros([ROWS, NUM_LANES], tl.int32)
    lanes = tl.zeros([ROWS, NUM_LANES], tl.float32)
    words = tl.zeros([ROWS, WORD_COLUMNS], tl.int32)
    for first in range(0, TURNS, UNROLLED):
        for turn in tl.static_range(UNROLLED):
            gradient, sums = _read_turn(x, first + turn, offsets, places, lengths, residual)
            seen |= magnitudes(gradient)
            lanes, words = _count(sums, first + turn, lanes, words, WORD_COLUMNS)
    half, is_sent, is_kept = _settle(lanes, seen, lengths, ROWS)
    for first in range(0, TURNS, UNROLLED):
        for turn in tl.static_range(UNROLLED):
            _, sums = _read_turn(x, first + turn, offsets, places, lengths, residual)
            _write_residual(sums, first + turn, half, is_sent, is_kept, places, lengths, residual, new_residual)
    _write_payload(words, half, is_sent, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                   VALUE_BYTES, WORD_COLUMNS)  # fmt: skip


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def decode(payload, table, num_blocks, out, weight, is_clean, shard_blocks, shard_bytes, scales_begin,
           IS_ADDED: tl.constexpr, IS_UNDO: tl.constexpr, TURNS: tl.constexpr, VALUE_BYTES: tl.constexpr,
           ROWS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Write or add weight * value, ROWS blocks a program; see `ScaledCodec.decode`."""
    if IS_UNDO:
        num_blocks = unless(is_clean, num_blocks)
    rows, offsets, _, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    is_real = rows < num_blocks
    values, scales = payload_parts(payload, rows, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)
    scale_bits = bits_of(read_scales(scales, is_real))
    for first in range(0, TURNS, UNROLLED):
        for turn in tl.static_range(UNROLLED):
            lane = NUM_LANES * (first + turn) + tl.arange(0, NUM_LANES)
            mask = lane < lengths[:, None]
            decoded = weight * _signed(_load_word(values, first + turn, is_real, VALUE_BYTES), scale_bits)
            pointers = out + offsets[:, None] + lane
            if IS_ADDED:
                decoded = read(pointers, mask) + decoded
            write(pointers, decoded, mask)


@triton.jit
def _read_mean(payloads, rank_stride, num_ranks, turn, rows, num_blocks, places, lengths, residual, shard_blocks,
               shard_bytes, scales_begin, VALUE_BYTES: tl.constexpr, ROWS: tl.constexpr):  # fmt: skip
    """Return (mean over ranks, mean + residual) of one turn."""
    lane = NUM_LANES * turn + tl.arange(0, NUM_LANES)
    mask = lane < lengths[:, None]
    is_real = rows < num_blocks
    # Adding to -0 gives the first rank's value itself, the sign of a zero included.
    total = tl.full([ROWS, NUM_LANES], -0.0, tl.float32)
    values, scales = payload_parts(payloads, rows, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES)
    for _ in range(num_ranks):
        total += _signed(_load_word(values, turn, is_real, VALUE_BYTES), bits_of(read_scales(scales, is_real)))
        values += rank_stride
        scales += rank_stride // 2
    mean = tl.where(mask, tl.div_rn(total, num_ranks.to(tl.float32)), 0.0)
    return mean, mean + tl.load(residual + places[:, None] + lane, mask=mask, other=0.0)


@triton.jit(do_not_specialize=["num_ranks", "num_blocks", "shard_blocks"])
def reduce(payloads, rank_stride, num_ranks, table, num_blocks, residual, new_residual, payload, shard_blocks,
           shard_bytes, scales_begin,
           TURNS: tl.constexpr, VALUE_BYTES: tl.constexpr, WORD_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Encode the mean of the ranks' payloads, ROWS blocks a program; see `ScaledCodec.reduce`."""
    rows, _offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    seen = tl.zeros([ROWS, NUM_LANES], tl.int32)
    lanes = tl.zeros([ROWS, NUM_LANES], tl.float32)
    words = tl.zeros([ROWS, WORD_COLUMNS], tl.int32)
    for turn in range(TURNS):
        mean, sums = _read_mean(payloads, rank_stride, num_ranks, turn, rows, num_blocks, places, lengths, residual,
                                shard_blocks, shard_bytes, scales_begin, VALUE_BYTES, ROWS)  # fmt: skip
        seen |= magnitudes(mean)
        lanes, words = _count(sums, turn, lanes, words, WORD_COLUMNS)
    half, is_sent, is_kept = _settle(lanes, seen, lengths, ROWS)
    for turn in range(TURNS):
        _mean, sums = _read_mean(payloads, rank_stride, num_ranks, turn, rows, num_blocks, places, lengths,
                                 residual, shard_blocks, shard_bytes, scales_begin, VALUE_BYTES, ROWS)  # fmt: skip
        _write_residual(sums, turn, half, is_sent, is_kept, places, lengths, residual, new_residual)
    _write_payload(words, half, is_sent, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                   VALUE_BYTES, WORD_COLUMNS)  # fmt: skip
