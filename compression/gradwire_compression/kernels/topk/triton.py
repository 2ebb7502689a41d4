"""topk as Triton kernels: the largest magnitudes of each block, an index byte and a bfloat16 number each.

The smallest magnitude that is sent is found by bisection on its bits, as the kernel for CPUs does it, and its ties
go by lower index: nothing depends on the order in which threads run. A block of a payload is a narrow field at any
offset, so that payloads are read and written a number at a time; vectors move 16 bytes at once.
"""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import (
    INFINITY_HALF,
    NAN_HALF,
    block_places,
    from_half,
    magnitudes,
    payload_parts,
    read,
    to_half,
    unless,
    write,
    write_padding,
)


@triton.jit
def _smallest_sent(magnitude, count, COLUMNS: tl.constexpr):
    """Return for each row the `count`-th largest of its magnitudes; padding is negative."""
    bound = tl.zeros(count.shape, tl.int32)
    for turn in range(31):
        tried = bound | (1 << (30 - turn))
        # -1 for each magnitude below. A sum over comparisons would be gathered bit by bit in local memory.
        below = tl.sum((magnitude - tried[:, None]) >> 31, axis=1)
        bound = tl.where(COLUMNS + below >= count, tried, bound)
    return bound


@triton.jit
def _choose(magnitude, count, COLUMNS: tl.constexpr):
    """Return (which elements are sent, the place of each among those of its row)."""
    bound = _smallest_sent(magnitude, count, COLUMNS)[:, None]
    is_above = (magnitude > bound).to(tl.int32)
    is_tie = (magnitude == bound).to(tl.int32)
    # One scan counts both: rows have at most 256 elements.
    before = tl.cumsum((is_above << 16) | is_tie, axis=1)
    # A sum over `is_above` would go through local memory, too.
    num_ties = (count - tl.max(before >> 16, axis=1))[:, None]
    ties = before & 0xFFFF
    is_chosen = (is_above != 0) | ((is_tie != 0) & (ties <= num_ties))
    return is_chosen, (before >> 16) + tl.minimum(ties, num_ties) - 1


@triton.jit
def _encode_tile(gradient, old, lengths, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                 NUM_SCALES: tl.constexpr, SCALE_COLUMNS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    """Write a tile's payload; return its new residual."""
    column = tl.arange(0, COLUMNS)
    is_zero = tl.max(magnitudes(gradient), axis=1) == 0
    sums = gradient + old
    half = to_half(sums)
    is_bad = (tl.max(half & 0x7FFF, axis=1) >= INFINITY_HALF) & ~is_zero
    count = tl.minimum(lengths, NUM_SCALES).to(tl.int32)
    is_chosen, place = _choose(tl.where(column < lengths[:, None], magnitudes(sums), -1), count, COLUMNS)
    # A number that rounds to zero has no sign.
    half = tl.where((half & 0x7FFF) == 0, 0, half)
    is_sent = ~is_zero & ~is_bad & (tl.max(tl.where(is_chosen, half & 0x7FFF, 0), axis=1) > 0)
    is_chosen &= is_sent[:, None] & (column < lengths[:, None])
    indices, numbers = payload_parts(payload, rows, shard_blocks, shard_bytes, scales_begin, NUM_SCALES, NUM_SCALES)
    tl.store(indices[:, None] + place, tl.broadcast_to(column[None, :], place.shape).to(tl.uint8), mask=is_chosen)
    tl.store(numbers[:, None] + place, half.to(tl.int16), mask=is_chosen)
    slot = tl.arange(0, SCALE_COLUMNS)
    is_rest = (slot < NUM_SCALES) & (slot >= tl.where(is_sent, count, 0)[:, None]) & (rows < num_blocks)[:, None]
    rest = tl.broadcast_to(tl.where(is_bad, NAN_HALF, 0)[:, None], is_rest.shape)
    tl.store(indices[:, None] + slot, tl.zeros(is_rest.shape, tl.uint8), mask=is_rest)
    tl.store(numbers[:, None] + slot, rest.to(tl.int16), mask=is_rest)
    write_padding(payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin, NUM_SCALES, NUM_SCALES)
    new = tl.where(is_chosen, sums - from_half(half), sums)
    return tl.where((is_zero | is_bad)[:, None], old, new)


@triton.jit
def _read_numbers(payload, rows, lengths, num_blocks, shard_blocks, shard_bytes, scales_begin,
                  NUM_SCALES: tl.constexpr, SCALE_COLUMNS: tl.constexpr):  # fmt: skip
    """Return (places in their block, numbers, which are there, which rows are not finite)."""
    indices, numbers = payload_parts(payload, rows, shard_blocks, shard_bytes, scales_begin, NUM_SCALES, NUM_SCALES)
    slot = tl.arange(0, SCALE_COLUMNS)
    is_there = (slot < NUM_SCALES) & (slot < lengths[:, None])
    index = tl.load(indices[:, None] + slot, mask=is_there, other=0).to(tl.int32)
    half = tl.load(numbers[:, None] + slot, mask=is_there, other=0).to(tl.int32) & 0xFFFF
    first = tl.load(numbers, mask=rows < num_blocks, other=0).to(tl.int32) & 0x7FFF
    return index, from_half(half), is_there & (index < lengths[:, None]), first >= INFINITY_HALF


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def encode(x, table, num_blocks, residual, new_residual, payload, shard_blocks, shard_bytes, scales_begin,
           NUM_SCALES: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Encode x + residual, ROWS blocks a program; see `ScaledCodec.encode`."""
    rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    gradient = read(x + offsets[:, None] + column, mask)
    old = tl.load(residual + places[:, None] + column, mask=mask, other=0.0)
    new = _encode_tile(gradient, old, lengths, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                       NUM_SCALES, SCALE_COLUMNS, COLUMNS)  # fmt: skip
    tl.store(new_residual + places[:, None] + column, new, mask=mask)


@triton.jit(do_not_specialize=["num_blocks", "shard_blocks"])
def decode(payload, table, num_blocks, out, weight, is_clean, shard_blocks, shard_bytes, scales_begin,
           IS_ADDED: tl.constexpr, IS_UNDO: tl.constexpr, NUM_SCALES: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Write or add weight * value, ROWS blocks a program; see `ScaledCodec.decode`.

    First what all elements of a block have in common, then, behind a barrier, those that were sent.
    """
    if IS_UNDO:
        num_blocks = unless(is_clean, num_blocks)
    rows, offsets, _, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    index, numbers, is_there, is_bad = _read_numbers(payload, rows, lengths, num_blocks, shard_blocks, shard_bytes,
                                                     scales_begin, NUM_SCALES, SCALE_COLUMNS)  # fmt: skip
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    common = weight * tl.where(is_bad, float("nan"), 0.0)
    values = tl.broadcast_to(common[:, None], mask.shape)
    sent = weight * numbers
    pointers, sent_pointers = out + offsets[:, None] + column, out + offsets[:, None] + index
    if IS_ADDED:
        values = read(pointers, mask) + values
        sent = read(sent_pointers, is_there) + sent
        tl.debug_barrier()
    write(pointers, values, mask)
    tl.debug_barrier()
    write(sent_pointers, sent, is_there)


@triton.jit(do_not_specialize=["num_ranks", "num_blocks", "shard_blocks"])
def reduce(payloads, rank_stride, num_ranks, table, num_blocks, residual, new_residual, payload, shard_blocks,
           shard_bytes, scales_begin,
           NUM_SCALES: tl.constexpr, SCALE_COLUMNS: tl.constexpr,
           ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Encode the mean of the ranks' payloads, ROWS blocks a program; see `ScaledCodec.reduce`.

    The sum is made where the new residual will be, a rank after the other with a barrier between. No number is -0,
    so that leaving out the zeros that a rank did not send changes no bit.
    """
    rows, _, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    pointers = new_residual + places[:, None] + column
    tl.store(pointers, tl.zeros([ROWS, COLUMNS], tl.float32), mask=mask)
    is_any_bad = tl.zeros([ROWS], tl.int1)
    for _ in range(num_ranks):
        tl.debug_barrier()
        index, numbers, is_there, is_bad = _read_numbers(payloads, rows, lengths, num_blocks, shard_blocks,
                                                         shard_bytes, scales_begin,
                                                         NUM_SCALES, SCALE_COLUMNS)  # fmt: skip
        sent_pointers = new_residual + places[:, None] + index
        total = tl.load(sent_pointers, mask=is_there, other=0.0) + numbers
        tl.store(sent_pointers, total, mask=is_there)
        is_any_bad |= is_bad
        payloads += rank_stride
    tl.debug_barrier()
    mean = tl.div_rn(tl.load(pointers, mask=mask, other=0.0), num_ranks.to(tl.float32))
    gradient = tl.where(mask, tl.where(is_any_bad[:, None], float("nan"), mean), 0.0)
    old = tl.load(residual + places[:, None] + column, mask=mask, other=0.0)
    new = _encode_tile(gradient, old, lengths, payload, rows, num_blocks, shard_blocks, shard_bytes, scales_begin,
                       NUM_SCALES, SCALE_COLUMNS, COLUMNS)  # fmt: skip
    tl.store(pointers, new, mask=mask)
