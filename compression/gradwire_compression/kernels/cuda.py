"""The Triton kernels for CUDA tensors, behind the same methods as the references.

Each call is one launch on the current stream, whatever the number of blocks; it copies nothing to the host and
waits for nothing. Only the first call for a layout copies its table to the device, and the first for a shape
compiles. Importing this module needs Triton.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.kernels.absmax import triton as absmax
from gradwire_compression.kernels.blocks import NUM_LANES, align
from gradwire_compression.kernels.cast import triton as cast
from gradwire_compression.kernels.fp8 import triton as fp8
from gradwire_compression.kernels.int4 import triton as int4
from gradwire_compression.kernels.int8 import triton as int8
from gradwire_compression.kernels.onebit import triton as onebit
from gradwire_compression.kernels.topk import triton as topk
from gradwire_compression.kernels.undo import triton as undo_kernels
from gradwire_compression.layout import Layout, Table

# What a kernel is compiled for, by the names of its parameters.
Constants = dict[str, Any]

# Elements of a tile for each thread of a program, and the threads: 4 warps.
_ELEMENTS_PER_THREAD = 32
_NUM_WARPS = 4
_NUM_THREADS = 32 * _NUM_WARPS


def absmax_constants(operation: ModuleType, num_bits: int, block: int) -> Constants:
    """Return what the kernels of a codec with `num_bits` an element need for blocks of `block` elements."""
    columns = _power_of_two(block)
    return {
        "SCALE": operation.scale,
        "CODE": operation.code,
        "PACK": operation.pack,
        "UNPACK": operation.unpack,
        "VALUE_BYTES": -(-block * num_bits // 8),
        "VALUE_COLUMNS": columns * num_bits // 8,
        "ROWS": _rows(columns),
        "COLUMNS": columns,
    }


def onebit_constants(block: int) -> Constants:
    """Return what the kernels of onebit need for blocks of `block` elements.

    A block is held by 8 threads of 4 lanes, which is what 16-byte loads want.
    """
    turns = -(-block // NUM_LANES)
    return {
        "TURNS": turns,
        "VALUE_BYTES": -(-block // 8),
        "WORD_COLUMNS": _power_of_two(turns),
        "ROWS": _NUM_THREADS // 8,
    }


def topk_constants(block: int, num_kept: int) -> Constants:
    """Return what the kernels of topk need for blocks of `block` elements, of which `num_kept` are sent.

    A quarter of the usual tile: each element has two addresses of its own, which take registers.
    """
    columns = _power_of_two(block)
    return {
        "VALUE_BYTES": num_kept,
        "NUM_SCALES": num_kept,
        "SCALE_COLUMNS": _power_of_two(num_kept),
        "ROWS": max(1, _rows(columns) // 4),
        "COLUMNS": columns,
    }


def cast_constants(name: str, block: int) -> Constants:
    """Return what the kernels of the cast `name` need for blocks of `block` elements."""
    columns = _power_of_two(block)
    return {"IS_SCALED": name == "fp16", "ROWS": _rows(columns), "COLUMNS": columns}


CASTS = ("bf16", "fp16")

# By codec the module of its kernels, and what they need for a block size and bf16 numbers a block.
SCALED: dict[str, tuple[ModuleType, Callable[[int, int], Constants]]] = {
    "int8": (absmax, lambda block, _: absmax_constants(int8, 8, block)),
    "fp8": (absmax, lambda block, _: absmax_constants(fp8, 8, block)),
    "int4": (absmax, lambda block, _: absmax_constants(int4, 4, block)),
    "onebit": (onebit, lambda block, _: onebit_constants(block)),
    "topk": (topk, topk_constants),
}

# One product and one sum are two roundings, as in the references.
OPTIONS: Constants = {"num_warps": _NUM_WARPS, "enable_fp_fusion": False}


def kernel_of(name: str, operation: str, block: int, num_scales: int = 1) -> tuple[Any, Constants]:
    """Return the kernel "encode", "decode" or "reduce" of a codec, and what to compile it for."""
    if name in CASTS:
        return getattr(cast, operation), cast_constants(name, block)
    module, constants_for = SCALED[name]
    # 32 turns, of 4 elements a thread, are what fits into a thread's registers.
    is_large = module is onebit and operation == "encode" and block > 32 * NUM_LANES
    return getattr(module, "encode_large" if is_large else operation), constants_for(block, num_scales)


def undo_of(block: int) -> tuple[Any, Constants]:
    """Return the kernel that takes an encode back, and what to compile it for."""
    columns = _power_of_two(block)
    return undo_kernels.take_back, {"ROWS": _rows(columns), "COLUMNS": columns}


class TritonKernels:
    """Encode, decode and reduce of the scaled codec `name`, with `num_scales` bf16 numbers a block.

    A payload may be several, [k, bytes] for a layout of k times as many blocks: one launch for all of them.
    """

    takes_shards = True
    # Where `take_back` decodes to.
    undo_bytes = 4

    def __init__(self, name: str, num_scales: int = 1) -> None:
        assert name in SCALED
        self._name, self._num_scales = name, num_scales

    def encode(self, x: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor) -> None:
        """Encode x + residual; see `ScaledCodec.encode`."""
        table, (kernel, constants) = layout.table(x.device), self._kernel_of("encode", layout)
        shards = _shards(payload, layout, constants)
        _launch(kernel, constants, table, _numbers(x), *_blocks(table), residual, new_residual, payload, *shards)

    def decode(self, payload: Tensor, layout: Layout, out: Tensor, weight: float, accumulate: bool) -> None:
        """Decode into `out`; see `ScaledCodec.decode`."""
        self._decode(payload, layout, out, weight, payload, IS_ADDED=accumulate, IS_UNDO=False)

    def reduce(
        self, payloads: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor
    ) -> None:
        """Encode the mean of several payloads; see `ScaledCodec.reduce`.

        `new_residual` must not be `residual`: it holds sums before it holds the result.
        """
        table, (kernel, constants) = layout.table(residual.device), self._kernel_of("reduce", layout)
        ranks = payloads, payloads.stride(0), payloads.shape[0]
        shards = _shards(payload, layout, constants)
        _launch(kernel, constants, table, *ranks, *_blocks(table), residual, new_residual, payload, *shards)

    def take_back(
        self,
        is_clean: Tensor,
        payload: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`, which only the device reads; see `ScaledCodec.take_back`."""
        flag = is_clean.view(torch.uint8)
        self._decode(payload, layout.compact(), undo, 1.0, flag, IS_ADDED=False, IS_UNDO=True)
        _take_back(flag, layout, residual, buffer, undo, 1.0)

    def _decode(
        self, payload: Tensor, layout: Layout, out: Tensor, weight: float, flag: Tensor, **constants: bool
    ) -> None:
        table, (kernel, known) = layout.table(out.device), self._kernel_of("decode", layout)
        shards = _shards(payload, layout, known)
        arguments = payload, *_blocks(table), _numbers(out), weight, flag, *shards
        _launch(kernel, known | constants, table, *arguments)

    def _kernel_of(self, operation: str, layout: Layout) -> tuple[Any, Constants]:
        return kernel_of(self._name, operation, layout.block, self._num_scales)


class TritonCastKernels:
    """Encode and decode of the cast `name`."""

    # Where `take_back` decodes to.
    undo_bytes = 4

    def __init__(self, name: str) -> None:
        assert name in CASTS
        self._name = name

    def encode(
        self,
        x: Tensor,
        layout: Layout,
        residual: Tensor,
        wire: Tensor,
        new_residual: Tensor,
        world_size: int,
        exponent: Tensor,
        largest: Tensor,
    ) -> None:
        """Cast (x + residual) / W * 2**exponent into `wire`; see `CastCodec.encode`."""
        table, (kernel, constants) = layout.table(x.device), kernel_of(self._name, "encode", layout.block)
        # The kernel raises it.
        noted = largest.zero_().view(torch.int32)
        rest = residual, new_residual, _numbers(wire), float(world_size), exponent, noted
        _launch(kernel, constants, table, _numbers(x), *_blocks(table), *rest)

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None:
        """Write the elements of `wire` times 2**-exponent to their places in `out`."""
        self._decode(wire, layout, out, exponent, exponent, is_undo=False)

    def take_back(
        self,
        is_clean: Tensor,
        wire: Tensor,
        layout: Layout,
        residual: Tensor,
        buffer: Tensor,
        undo: Tensor,
        world_size: int,
        exponent: Tensor,
    ) -> None:
        """Undo an encode unless `is_clean`, which only the device reads; see `CastCodec.take_back`."""
        flag = is_clean.view(torch.uint8)
        self._decode(wire, layout.compact(), undo, exponent, flag, is_undo=True)
        _take_back(flag, layout, residual, buffer, undo, float(world_size))

    def _decode(
        self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor, flag: Tensor, is_undo: bool
    ) -> None:
        table, (kernel, constants) = layout.table(out.device), kernel_of(self._name, "decode", layout.block)
        arguments = _numbers(wire), *_blocks(table), _numbers(out), exponent, flag
        _launch(kernel, constants | {"IS_UNDO": is_undo}, table, *arguments)


def _take_back(
    flag: Tensor, layout: Layout, residual: Tensor, buffer: Tensor, decoded: Tensor, weight: float
) -> None:
    table, (kernel, constants) = layout.table(buffer.device), undo_of(layout.block)
    _launch(kernel, constants, table, flag, _numbers(buffer), *_blocks(table), decoded, residual, weight)


def _launch(kernel: Any, constants: Constants, table: Table, *arguments: object) -> None:
    """Launch one program for ROWS blocks each, with those constants that the kernel names."""
    if table.num_blocks == 0:
        return
    grid = (-(-table.num_blocks // constants["ROWS"]),)
    constants["IS_ALIGNED"] = table.is_aligned
    taken = {name: value for name, value in constants.items() if name in kernel.arg_names}
    kernel[grid](*arguments, **taken, **OPTIONS)


def _blocks(table: Table) -> tuple[Tensor, int]:
    return table.numbers, table.num_blocks


def _shards(payload: Tensor, layout: Layout, constants: Constants) -> tuple[int, int, int]:
    """Return (blocks of a shard, bytes of its payload, where its scales begin)."""
    num_shards = payload.shape[0] if payload.dim() == 2 else 1
    num_blocks = layout.num_blocks // num_shards
    return num_blocks, payload.shape[-1], align(num_blocks * constants["VALUE_BYTES"])


def _numbers(tensor: Tensor) -> Tensor:
    """Return the tensor as kernels take it: bfloat16 as int16."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _rows(columns: int) -> int:
    return max(1, _ELEMENTS_PER_THREAD * _NUM_THREADS // columns)


def _power_of_two(number: int) -> int:
    """Return the smallest power of two that is not below `number`."""
    return 1 << (number - 1).bit_length()
