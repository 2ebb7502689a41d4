"""The Triton kernels: right in the interpreter, and fast code for every architecture, without a GPU."""

import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed here")

from gradwire_compression.codecs import cast, registry, topk  # noqa: E402
from gradwire_compression.kernels import cuda  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.backends.nvidia.compiler import get_ptxas  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

ROOT = Path(__file__).parents[2]
CODECS = (*cuda.CASTS, *cuda.SCALED)
ARCHITECTURES = (80, 90, 100)
# What a kernel's argument is, by its name; whatever is not here is an integer.
POINTERS = {
    "x": "*fp32",
    "out": "*fp32",
    "table": "*i32",
    "residual": "*fp32",
    "new_residual": "*fp32",
    "payload": "*u8",
    "payloads": "*u8",
    "wire": "*i16",
    "exponent": "*i32",
    "is_clean": "*u8",
    "decoded": "*fp32",
    "largest": "*i32",
}
FLOATS = ("weight", "world_size")
# Where the main loop's loads are narrower than 128 bits: one is all that 128 bits written ask for. casts read two
# bytes for every float32, onebit a word of signs for every 32, and topk a few numbers of 16 bits at any offset.
NARROW_LOADS = {("bf16", "decode"): 64, ("fp16", "decode"): 64, ("onebit", "decode"): 32, ("topk", "decode"): 16}
MULTIPLES_OF_16 = ("shard_bytes", "scales_begin", "rank_stride", *POINTERS)


# The interpreter needs half a minute for onebit on an idle core.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CODECS)
def test_kernels_equal_the_references_in_the_interpreter(name):
    outcome = subprocess.run(
        [sys.executable, "-m", "tests.compression.interpreted", name],
        cwd=ROOT,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.stdout == "equal\n", outcome.stderr


def compile_for(architecture, kernel, constants, kinds):
    """Return the PTX that the launches of `cuda` would run."""
    taken = {name: value for name, value in constants.items() if name in kernel.arg_names}
    kinds = POINTERS | kinds | dict.fromkeys(FLOATS, "fp32") | dict.fromkeys(taken, "constexpr")
    signature = {name: kinds.get(name, "i32") for name in kernel.arg_names}
    hints = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name in MULTIPLES_OF_16
    }
    source = ASTSource(kernel, signature, taken, hints)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=cuda.OPTIONS)
    return compiled.asm["ptx"]


def accesses(ptx):
    """Return how often the PTX reads and writes global memory, by direction and bits at a time."""
    found = Counter()
    for direction, vector, bits in re.findall(r"\b(ld|st)\.global(?:\.L?\w+)*?(?:\.v(\d))?\.b(\d+)", ptx):
        found[direction, int(vector or 1) * int(bits)] += 1
    return found


def assembler_report(architecture, ptx):
    """Return what ptxas says of registers, stack and spills."""
    suffix = "a" if architecture >= 90 else ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(ptx)
        command = [get_ptxas(architecture).path, "-v", "--fmad=false", f"--gpu-name=sm_{architecture}{suffix}"]
        command += [str(path), "-o", str(path.with_suffix(".cubin"))]
        outcome = subprocess.run(command, capture_output=True, text=True, check=True)
    return outcome.stdout + outcome.stderr


def check_no_local_memory(architecture, ptx):
    assert ".local" not in ptx
    report = assembler_report(architecture, ptx)
    assert re.search(r"Used \d+ registers", report)
    assert re.findall(r"(\d+) bytes (?:stack frame|spill \w+)", report) == ["0", "0", "0"]


def check_arithmetic(ptx):
    """No product is fused with a sum, no quotient approximated, no denormal flushed."""
    assert not re.search(r"\b(fma|mad)\.\w*\.?f32", ptx)
    assert not re.search(r"\bdiv\.(full|approx)", ptx)
    assert ".ftz" not in ptx


KERNELS = [
    (name, operation)
    for name in CODECS
    for operation in (("encode", "decode") if name in cuda.CASTS else ("encode", "decode", "reduce"))
] + [("int8", "take_back")]


def sizes_of(name):
    """Return (block, bf16 numbers a block) of the codec's defaults."""
    if name in cuda.CASTS:
        return cast.BLOCK, 1
    default = registry.facts(name).parameters[0].default
    return (topk.BLOCK, default) if name == "topk" else (default, 1)


def compiled(name, operation, architecture, is_aligned, is_undo=False):
    if operation == "take_back":
        kernel, constants = cuda.undo_of(sizes_of(name)[0])
    else:
        kernel, constants = cuda.kernel_of(name, operation, *sizes_of(name))
    kinds = {"wire": "*fp16"} if name == "fp16" else {}
    constants |= {"IS_ALIGNED": is_aligned, "IS_ADDED": False, "IS_UNDO": is_undo}
    return compile_for(architecture, kernel, constants, kinds)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("name", "operation"), KERNELS)
def test_aligned_kernel_moves_16_bytes_at_once_and_spills_nothing(name, operation, architecture):
    ptx = compiled(name, operation, architecture, is_aligned=True)
    check_no_local_memory(architecture, ptx)
    check_arithmetic(ptx)
    found = accesses(ptx)
    assert found["ld", NARROW_LOADS.get((name, operation), 128)] > 0
    assert found["st", 128] > 0
    # Of float32 vectors nothing is left for narrow stores; a payload's values may take one.
    assert found["st", 32] <= 1


@pytest.mark.parametrize("name", CODECS)
def test_decode_that_heeds_a_flag_reads_one_byte_more(name):
    decode, undo = (compiled(name, "decode", 90, is_aligned=True, is_undo=is_undo) for is_undo in (False, True))
    check_no_local_memory(90, undo)
    assert accesses(undo) - accesses(decode) == {("ld", 8): 1}


@pytest.mark.parametrize("name", CODECS)
def test_kernel_for_any_offset_never_assumes_alignment(name):
    encode = accesses(compiled(name, "encode", 90, is_aligned=False))
    assert {bits for direction, bits in encode if direction == "ld"} == {32}
    decode = accesses(compiled(name, "decode", 90, is_aligned=False))
    assert {bits for direction, bits in decode if direction == "st"} == {32}
