"""The compiled kernels for CPU tensors, behind the same methods as the references."""

import struct
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.kernels.undo.reference import CastUndo, Undo
from gradwire_compression.layout import Layout

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


def _table(layout: Layout) -> tuple[int, int, int, int]:
    return layout.offsets.data_ptr(), layout.lengths.data_ptr(), layout.num_blocks, layout.block


def address(tensor: Tensor, dtype: torch.dtype, numel: int) -> int:
    """Return the tensor's address; the kernel trusts what is asserted here."""
    assert tensor.dtype == dtype
    assert tensor.is_contiguous()
    assert tensor.device.type == "cpu"
    assert tensor.numel() >= numel
    return tensor.data_ptr()


class CpuKernels(Undo):
    """Encode, decode and reduce of the scaled codec `name`, with `num_scales` bf16 numbers a block."""

    def __init__(self, module: ModuleType, name: str, num_scales: int) -> None:
        self._num_scales = num_scales
        self._encode: Any = getattr(module, f"{name}_encode")
        self._decode: Any = getattr(module, f"{name}_decode")
        self._reduce: Any = getattr(module, f"{name}_reduce")

    def encode(self, x: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor) -> None:
        """Encode x + residual; see `ScaledCodec.encode`."""
        self._encode(
            *_table(layout),
            address(x, x.dtype, 0),
            DTYPES[x.dtype],
            address(residual, torch.float32, layout.numel),
            address(new_residual, torch.float32, layout.numel),
            address(payload, torch.uint8, 0),
            self._num_scales,
        )

    def decode(self, payload: Tensor, layout: Layout, out: Tensor, weight: float, accumulate: bool) -> None:
        """Decode into `out`; see `ScaledCodec.decode`."""
        assert out.dtype == torch.float32 or not accumulate
        (weight_bits,) = struct.unpack("<I", struct.pack("<f", weight))
        self._decode(
            *_table(layout),
            address(payload, torch.uint8, 0),
            address(out, out.dtype, 0),
            DTYPES[out.dtype],
            weight_bits,
            int(accumulate),
            self._num_scales,
        )

    def reduce(
        self, payloads: Tensor, layout: Layout, residual: Tensor, payload: Tensor, new_residual: Tensor
    ) -> None:
        """Encode the mean of several payloads; see `ScaledCodec.reduce`."""
        self._reduce(
            *_table(layout),
            address(payloads, torch.uint8, 0),
            payloads.stride(0),
            payloads.shape[0],
            address(residual, torch.float32, layout.numel),
            address(new_residual, torch.float32, layout.numel),
            address(payload, torch.uint8, 0),
            self._num_scales,
        )


class CpuCastKernels(CastUndo):
    """Encode and decode of the casts."""

    def __init__(self, module: ModuleType) -> None:
        self._encode: Any = module.cast_encode
        self._decode: Any = module.cast_decode

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
        self._encode(
            *_table(layout),
            address(x, x.dtype, 0),
            DTYPES[x.dtype],
            address(residual, torch.float32, layout.numel),
            address(new_residual, torch.float32, layout.numel),
            address(wire, wire.dtype, layout.numel),
            DTYPES[wire.dtype],
            world_size,
            int(exponent),
            address(largest, torch.float32, 1),
        )

    def decode(self, wire: Tensor, layout: Layout, out: Tensor, exponent: Tensor) -> None:
        """Write the elements of `wire` times 2**-exponent to their places in `out`."""
        self._decode(
            *_table(layout),
            address(wire, wire.dtype, layout.numel),
            DTYPES[wire.dtype],
            int(exponent),
            address(out, out.dtype, 0),
            DTYPES[out.dtype],
        )
