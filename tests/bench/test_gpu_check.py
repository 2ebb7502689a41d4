"""What of bench.gpu_check runs without a GPU: its checks, in Triton's interpreter, and its answer."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gradwire_protocol.records import PhaseSeconds, StepWindow

from bench import gpu_timing

ROOT = Path(__file__).parents[2]

CHECKS = """
import torch
from bench import gpu_check
if __name__ == "__main__":
    gpu_check.check_all(gpu_check.CPU, sizes=(1, 300))
    print("equal")
"""

# A kernel that is wrong in one bit must be noticed.
SPOILED = """
import torch
from bench import gpu_check
from gradwire_compression.kernels import cuda

class Spoiled(cuda.TritonKernels):
    def encode(self, x, layout, residual, payload, new_residual):
        super().encode(x, layout, residual, payload, new_residual)
        payload[0] ^= 1

gpu_check.check_scaled("int8", Spoiled("int8"), 300, 0, gpu_check.CPU)
"""

# The whole chain of a CUDA model on CPU tensors: its Lane, its kernels in the interpreter, shards in one launch.
RANKS = """
import torch
from bench import gpu_check
from gradwire_compression import exchange
from gradwire_compression.collectives.lane import StreamLane
from gradwire_compression.kernels import dispatch

def use_device_kernels():
    dispatch._is_compiled_for = lambda name, device: True
    exchange.lane_for = StreamLane

gpu_check.use_device_kernels = use_device_kernels
if __name__ == "__main__":
    gpu_check.exchange({world_size}, "gloo")
    print("equal")
"""


def run(tmp_path, code):
    pytest.importorskip("triton", reason="Triton is not installed here")
    script = tmp_path / "script.py"
    script.write_text(code)
    search_path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": search_path}
    return subprocess.run(
        [sys.executable, str(script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_checks_pass_in_the_interpreter(tmp_path):
    outcome = run(tmp_path, CHECKS)
    assert outcome.stdout == "equal\n", outcome.stderr


def test_a_wrong_bit_is_noticed(tmp_path):
    outcome = run(tmp_path, SPOILED)
    assert "int8, 300 elements: the payload differs from the reference" in outcome.stderr


@pytest.mark.distributed
@pytest.mark.timeout(600)
@pytest.mark.parametrize("world_size", [1, 2])
def test_training_equals_that_on_cpu(tmp_path, world_size):
    outcome = run(tmp_path, RANKS.format(world_size=world_size))
    assert outcome.stdout == "equal\n", outcome.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_and_shows_no_figures():
    outcome = subprocess.run(
        [sys.executable, "-m", "bench.gpu_check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0
    assert outcome.stdout == "no CUDA device here: nothing was checked or measured\n"


TIMING = """
from bench import gpu_check
if __name__ == "__main__":
    gpu_check.timing("gloo")
    print("known")
"""


def test_the_check_of_the_agents_phases_holds_where_steps_sleep(tmp_path):
    outcome = run(tmp_path, TIMING)
    assert outcome.stdout.strip().endswith("known"), outcome.stderr


def window(**seconds: float) -> StepWindow:
    values = {"step": 0.6, "forward": 0.2, "backward": 0.3} | seconds
    return StepWindow(
        first_step=3,
        last_step=12,
        num_steps=10,
        num_rank_steps=10,
        epoch=0,
        codec="none",
        seconds=PhaseSeconds(**values),
    )


def test_phases_that_are_off_and_other_readers_of_the_clock_are_refused():
    gpu_timing.judge([window()], {gpu_timing.READER})
    with pytest.raises(RuntimeError, match=r"forward took 20\.0 ms of a step and was measured as 24\.0 ms"):
        gpu_timing.judge([window(forward=0.24)], {gpu_timing.READER})
    with pytest.raises(RuntimeError, match="backward took"):
        gpu_timing.judge([window(backward=0.2)], set())
    with pytest.raises(RuntimeError, match="MainThread"):
        gpu_timing.judge([window()], {"MainThread"})
    with pytest.raises(RuntimeError, match="no settled step"):
        gpu_timing.judge([], set())
