import subprocess
import sys

import torch
from gradwire_compression.kernels import dispatch

_WITHOUT = """
import logging, sys
sys.modules["gradwire_compression.kernels._cpu"] = None
logging.basicConfig(format="%(message)s")
import torch
from gradwire_compression import notes
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.kernels.blocks import ReferenceKernels
cpu = torch.device("cpu")
for name in ("int8", "fp8", "int4", "onebit", "topk", "int8"):
    assert isinstance(ScaledCodec(name, 256, cpu)._kernels, ReferenceKernels)
print(*notes(), sep="\\n")
"""


def test_missing_kernels_fall_back_to_the_reference_and_say_so_once():
    answer = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=True)
    assert answer.stdout.startswith("the compiled CPU kernels are missing")
    assert answer.stdout.count("\n") == 1
    assert answer.stderr.count("the compiled CPU kernels are missing") == 1


def test_notes_say_whether_kernels_are_compiled():
    assert dispatch.is_compiled() == (dispatch.notes() == ())


def test_compiled_kernels_are_used_where_they_are_built():
    kernels = dispatch.scaled_kernels("int8", torch.device("cpu"))
    assert (type(kernels).__name__ == "CpuKernels") == dispatch.is_compiled()
