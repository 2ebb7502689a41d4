import subprocess
import sys

import pytest
import torch
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.host import HostCastKernels, HostKernels

from tests.compression.samples import NAMES, codec_of, hard_values, layout_of, same_bits

CPU = torch.device("cpu")

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


_WITHOUT_TRITON = """
import logging, sys
sys.modules["triton"] = None
logging.basicConfig(format="%(message)s")
import torch
from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
cuda = torch.device("cuda")
for codec in (ScaledCodec("int8", 256, cuda), ScaledCodec("topk", 256, cuda, 13), CastCodec("fp16", cuda)):
    print(type(codec._kernels).__name__)
"""


def test_cuda_tensors_go_to_the_host_without_triton_and_that_is_said_once():
    answer = subprocess.run([sys.executable, "-c", _WITHOUT_TRITON], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == ["HostKernels", "HostKernels", "HostCastKernels"]
    assert answer.stderr.count("Triton is not installed") == 1


@pytest.mark.parametrize("name", NAMES)
def test_kernels_by_way_of_the_host_are_those_of_the_host(name):
    codec, layout = codec_of(name, 64), layout_of(1000, 256 if name == "topk" else 64, offset=3)
    shards, results = layout.deal(0, 9, 2), []
    own = codec._kernels
    for kernels in (own, HostKernels(own)):
        codec._kernels = kernels
        x, residual = hard_values(1003, dtype=torch.float16), hard_values(1000, seed=1) * 0.1
        payloads = torch.zeros(2, codec.wire_bytes(9), dtype=torch.uint8)
        codec.encode_shards(x, shards, shards.of(residual), payloads)
        decoded, mean, owner = torch.zeros_like(x), torch.zeros_like(payloads[0]), torch.zeros(shards.each[0].numel)
        codec.decode_shards(payloads, shards, decoded)
        codec.reduce(payloads[:1], shards.each[0].compact(), owner, mean, new := torch.zeros_like(owner))
        back = residual.clone()
        for is_clean in (True, False):
            codec.take_back(torch.tensor(is_clean), payloads, shards, shards.of(back), x, torch.empty(0))
        results.append((payloads, residual, decoded, mean, new, back))
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["bf16", "fp16"])
def test_casts_by_way_of_the_host_are_those_of_the_host(name):
    codec, layout, results = CastCodec(name, CPU), layout_of(1000, 256, offset=3), []
    own = codec._kernels
    for kernels in (own, HostCastKernels(own)):
        codec._kernels = kernels
        x, residual = hard_values(1003) * 1e-6, hard_values(1000, seed=1) * 0.1
        wire, power, largest = torch.zeros(1000, dtype=codec.dtype), torch.tensor([4]), torch.zeros(1)
        codec.encode(x, layout, residual, wire, 3, power, largest)
        codec.decode(wire, layout, x, power)
        back = residual.clone()
        codec.take_back(torch.tensor(False), wire, layout, back, x, torch.empty(0), 3, power)
        results.append((wire, residual, largest, x, back))
    assert all(same_bits(one, other) for one, other in zip(*results, strict=True))


def test_notes_say_whether_kernels_are_compiled():
    assert dispatch.is_compiled() == (dispatch.notes() == ())


def test_compiled_kernels_are_used_where_they_are_built():
    kernels = dispatch.scaled_kernels("int8", torch.device("cpu"))
    assert (type(kernels).__name__ == "CpuKernels") == dispatch.is_compiled()
