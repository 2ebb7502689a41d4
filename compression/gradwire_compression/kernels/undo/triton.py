"""Taking back an encode, in Triton: the kernel itself reads the flag that asks for it."""

import triton
import triton.language as tl

from gradwire_compression.kernels.tiles.triton import INFINITY_BITS, block_places, magnitudes, read, unless


@triton.jit(do_not_specialize=["num_blocks"])
def take_back(is_clean, x, table, num_blocks, decoded, residual, weight,
              ROWS: tl.constexpr, COLUMNS: tl.constexpr, IS_ALIGNED: tl.constexpr):  # fmt: skip
    """Undo what encoding x left in the residual, ROWS blocks a program; see `restore`.

    `decoded` holds this rank's own payload in compact order, to be multiplied by `weight`.
    """
    num_blocks = unless(is_clean, num_blocks)
    _rows, offsets, places, lengths = block_places(table, num_blocks, tl.program_id(0) * ROWS, ROWS, IS_ALIGNED)
    column = tl.arange(0, COLUMNS)
    mask = column < lengths[:, None]
    gradient = read(x + offsets[:, None] + column, mask)
    sent = weight * tl.load(decoded + places[:, None] + column, mask=mask, other=0.0)
    pointers = residual + places[:, None] + column
    new = tl.load(pointers, mask=mask, other=0.0)
    is_sent = (tl.max(magnitudes(sent), axis=1) < INFINITY_BITS)[:, None]
    tl.store(pointers, tl.where(is_sent, new + (sent - gradient), new), mask=mask)
