"""Which kernels run on which device; a missing backend falls back to the reference and says so once."""

import logging
from importlib.util import find_spec
from types import ModuleType

import torch

from gradwire_compression.errors import PlanError
from gradwire_compression.kernels.blocks import ReferenceKernels, ScaledOperation
from gradwire_compression.kernels.cast.reference import ReferenceCastKernels
from gradwire_compression.kernels.contracts import CastKernels, ScaledKernels
from gradwire_compression.kernels.cpu import CpuCastKernels, CpuKernels
from gradwire_compression.kernels.fp8.reference import Fp8Operation
from gradwire_compression.kernels.host import HostCastKernels, HostKernels
from gradwire_compression.kernels.int4.reference import Int4Operation
from gradwire_compression.kernels.int8.reference import Int8Operation
from gradwire_compression.kernels.low_rank.cpu import CpuLowRankKernels
from gradwire_compression.kernels.low_rank.reference import ReferenceLowRankKernels
from gradwire_compression.kernels.onebit.reference import OnebitOperation
from gradwire_compression.kernels.topk.reference import TopkOperation

_log = logging.getLogger(__name__)

_cpu: ModuleType | None
try:
    from gradwire_compression.kernels import _cpu
except ImportError:
    _cpu = None

_OPERATIONS: dict[str, ScaledOperation] = {
    "int8": Int8Operation(),
    "fp8": Fp8Operation(),
    "int4": Int4Operation(),
    "onebit": OnebitOperation(),
}

_NOT_BUILT = (
    "the compiled CPU kernels are missing (no C compiler when Gradwire was installed), "
    "so codecs run as plain torch operations and are many times slower"
)
_NO_TRITON = (
    "Triton is not installed, so codecs copy CUDA gradients to the CPU and back and are many times slower "
    "(pip install triton)"
)
_UNPROVED = (
    "codecs for CUDA gradients were proved without a GPU and have never run on one: "
    "run python -m bench.gpu_check of Gradwire's sources there first"
)
_said: set[str] = set()


def is_compiled() -> bool:
    """Return whether the compiled CPU kernels are there."""
    return _cpu is not None


def has_triton() -> bool:
    """Return whether kernels for CUDA can be compiled here."""
    return find_spec("triton") is not None


def notes() -> tuple[str, ...]:
    """Return what the user should know about the kernels of this installation; empty if all are there."""
    found = [] if is_compiled() else [_NOT_BUILT]
    if torch.cuda.is_available():
        found.append(_UNPROVED if has_triton() else _NO_TRITON)
    return tuple(found)


def value_bytes(name: str, block: int, num_scales: int = 1) -> int:
    """Return the bytes that the values of one full block take in a scaled codec."""
    return _operation(name, num_scales).value_bytes(block)


def reference_kernels(name: str, num_scales: int = 1) -> ScaledKernels:
    """Return the plain torch kernels of a scaled codec, the truth that the others are compared with."""
    return ReferenceKernels(_operation(name, num_scales))


def scaled_kernels(name: str, device: torch.device, num_scales: int = 1) -> ScaledKernels:
    """Return the fastest kernels of a scaled codec for tensors on `device`.

    Raises:
        PlanError: No kernels run there.
    """
    if _is_compiled_for(name, device):
        from gradwire_compression.kernels.cuda import TritonKernels

        return TritonKernels(name, num_scales)
    kernels = CpuKernels(_cpu, name, num_scales) if _cpu is not None else reference_kernels(name, num_scales)
    return kernels if device.type == "cpu" else HostKernels(kernels)


def cast_kernels(name: str, device: torch.device) -> CastKernels:
    """Return the fastest kernels of a cast for tensors on `device`.

    Raises:
        PlanError: No kernels run there.
    """
    if _is_compiled_for(name, device):
        from gradwire_compression.kernels.cuda import TritonCastKernels

        return TritonCastKernels(name)
    kernels = CpuCastKernels(_cpu) if _cpu is not None else ReferenceCastKernels()
    return kernels if device.type == "cpu" else HostCastKernels(kernels)


def low_rank_kernels() -> CpuLowRankKernels | ReferenceLowRankKernels:
    """Return the fastest kernels of low-rank averages for CPU tensors."""
    return CpuLowRankKernels(_cpu) if _cpu is not None else ReferenceLowRankKernels()


def _operation(name: str, num_scales: int) -> ScaledOperation:
    return TopkOperation(num_scales) if name == "topk" else _OPERATIONS[name]


def _is_compiled_for(name: str, device: torch.device) -> bool:
    """Return whether Triton compiles kernels for this device; say once what is missing if nothing does."""
    if device.type not in ("cpu", "cuda"):
        raise PlanError(f"{name} has no kernels for {device.type} tensors in this version; use none")
    if device.type == "cuda":
        _say(_UNPROVED if has_triton() else _NO_TRITON)
        if has_triton():
            return True
    if not is_compiled():
        _say(_NOT_BUILT)
    return False


def _say(note: str) -> None:
    if note not in _said:
        _said.add(note)
        _log.warning(note)
