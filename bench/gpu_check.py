"""Codecs on a GPU: equal to the references bit for bit, trained with, and how fast; `python -m bench.gpu_check`.

Without a CUDA device, or without Triton, it says so and shows no figures. No speed is shown unless all results are
equal: those of each kernel, and the averages of DDP training over NCCL, on one GPU and on two where there are two.
Nor is it unless the agent's events tell how long kernels of known length took, read by the agent's own thread
alone, without a step that waits for the device.
"""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gradwire_compression import Exchange, Plan, Silence, ddp
from gradwire_compression.buckets import pack
from gradwire_compression.codecs import cast, registry, topk
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.blocks import payload_bytes
from gradwire_compression.kernels.cast.reference import ReferenceCastKernels
from gradwire_compression.layout import Layout
from torch import Tensor
from torch.distributed import ProcessGroup

from bench.gpu_timing import timing_on_rank
from bench.runner import Result, Row, Target, main

CASTS = ("bf16", "fp16")
SCALED = ("int8", "fp8", "int4", "topk", "onebit")
CPU = torch.device("cpu")
SIZES = (1, 255, 4097, 1_000_003)
# 256 MiB of float32: far more than any cache holds.
NUM_ELEMENTS = 64 * 1024 * 1024
NUM_RANKS = 3
EXPONENT = -3
# Steps of training; one of them is not finite on one rank.
NUM_STEPS, SPOILED = 6, 4


def layout_of(num_elements: int, block: int, offset: int = 0) -> Layout:
    """Return the blocks of one tensor that begins at `offset` of its bucket."""
    return Layout.build(pack([("before", offset), ("tensor", num_elements)])[1:], block)


def sizes_of(name: str) -> tuple[int, int]:
    """Return (block, bf16 numbers a block) of the codec's defaults."""
    if name in CASTS:
        return cast.BLOCK, 1
    default = int(registry.facts(name).parameters[0].default)
    return (topk.BLOCK, default) if name == "topk" else (default, 1)


def payload_for(name: str, layout: Layout, device: torch.device) -> Tensor:
    """Return an uninitialised payload."""
    _, num_scales = sizes_of(name)
    value_bytes = dispatch.value_bytes(name, layout.block, num_scales)
    size = payload_bytes(layout.num_blocks, value_bytes, num_scales)
    return torch.empty(size, dtype=torch.uint8, device=device)


def kernels_for(name: str) -> Any:
    """Return the Triton kernels of a codec."""
    from gradwire_compression.kernels import cuda

    return cuda.TritonCastKernels(name) if name in CASTS else cuda.TritonKernels(name, sizes_of(name)[1])


def check_scaled(name: str, kernels: Any, num_elements: int, offset: int, device: torch.device) -> None:
    """Encode, decode, reduce and take back on `device` and with the reference on CPU.

    Raises:
        RuntimeError: A result differs in a bit.
    """
    block, num_scales = sizes_of(name)
    layout = layout_of(num_elements, block, offset)
    x, residual = torch.randn(num_elements + offset), torch.randn(num_elements) * 0.01
    results = []
    for side, place in ((dispatch.reference_kernels(name, num_scales), CPU), (kernels, device)):
        payload, mean = payload_for(name, layout, place), payload_for(name, layout, place)
        new, owner, undo = (torch.empty(num_elements, device=place) for _ in range(3))
        out = torch.zeros(num_elements + offset, device=place)
        side.encode(x.to(place), layout, residual.to(place), payload, new)
        side.decode(payload, layout, out, 1.0, False)
        payloads = payload.repeat(NUM_RANKS, 1)
        side.reduce(payloads, layout.compact(), residual.to(place), mean, owner)
        kept, back = new.clone(), new.clone()
        for is_clean, vector in ((True, kept), (False, back)):
            flag = torch.tensor(is_clean, device=place)
            side.take_back(flag, payload, layout, vector, x.to(place), undo)
        results.append((payload, new, out, mean, owner, kept, back))
    parts = ("payload", "residual", "decoded", "mean", "owner's residual", "kept residual", "old residual")
    compare(name, num_elements, parts, results)


def check_cast(name: str, kernels: Any, num_elements: int, offset: int, device: torch.device) -> None:
    """Encode, decode and take back the cast as `check_scaled` does; raises as it does."""
    layout = layout_of(num_elements, cast.BLOCK, offset)
    x, residual = torch.randn(num_elements + offset), torch.randn(num_elements) * 0.01
    dtype = torch.bfloat16 if name == "bf16" else torch.float16
    results = []
    for side, place in ((ReferenceCastKernels(), CPU), (kernels, device)):
        wire, new = torch.empty(num_elements, dtype=dtype, device=place), residual.to(place, copy=True)
        exponent = torch.tensor([EXPONENT if name == "fp16" else 0], dtype=torch.int32, device=place)
        out, largest = torch.zeros(num_elements + offset, device=place), torch.zeros(1, device=place)
        side.encode(x.to(place), layout, new, wire, new, NUM_RANKS, exponent, largest)
        side.decode(wire, layout, out, exponent)
        back, undo = new.clone(), torch.empty(num_elements, device=place)
        flag = torch.tensor(False, device=place)
        side.take_back(flag, wire, layout, back, x.to(place), undo, NUM_RANKS, exponent)
        noted = largest if name == "fp16" else torch.zeros(1)
        results.append((wire.view(torch.int16), new, out, back, noted))
    compare(name, num_elements, ("wire", "residual", "decoded", "old residual", "largest magnitude"), results)


def compare(name: str, size: int, parts: tuple[str, ...], results: Sequence[tuple[Tensor, ...]]) -> None:
    """Raise RuntimeError unless both results hold equal bits."""
    for part, wanted, got in zip(parts, *results, strict=True):
        if not torch.equal(wanted.view(torch.uint8), got.cpu().view(torch.uint8)):
            raise RuntimeError(f"{name}, {size} elements: the {part} differs from the reference")


def check_all(device: torch.device, sizes: tuple[int, ...] = SIZES) -> None:
    """Compare every kernel with its reference, for aligned and odd offsets; raises as `check_scaled` does."""
    torch.manual_seed(0)
    for size in sizes:
        for offset in (0, 3):
            for name in CASTS:
                check_cast(name, kernels_for(name), size, offset, device)
            for name in SCALED:
                check_scaled(name, kernels_for(name), size, offset, device)


class Told(torch.nn.Module):
    """A model whose gradients are what the caller says: loss = sum of parameter * wanted gradient."""

    def __init__(self, size: int) -> None:
        super().__init__()
        shapes = ((30 * size, 40), (50,), (7 * size, 101), (7, 9))
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self, wanted: Sequence[Tensor]) -> Tensor:
        """Return the loss."""
        products = [(weight * one).sum() for weight, one in zip(self.weights, wanted, strict=True)]
        return torch.stack(products).sum()


def averages(name: str, group: ProcessGroup, device: torch.device, size: int) -> list[Tensor]:
    """Train with a codec over DDP; return the averaged gradients of all steps, on CPU.

    Raises:
        RuntimeError: A step that should not wait for the device does, or it waits for a compiler.
    """
    rank = dist.get_rank(group)
    on_gpu: dict[str, Any] = {"device_ids": [device.index]} if device.type == "cuda" else {}
    # Two buckets, and a third for what is left.
    model = torch.nn.parallel.DistributedDataParallel(
        Told(size).to(device), process_group=group, bucket_cap_mb=0.004 * size, **on_gpu
    )
    exchange = Exchange(
        list(model.module.named_parameters()),
        group,
        plan=Plan(),
        optimizer_class="SGD",
        observer=Silence(),
        # A group of its own even for a single rank, which then encodes and decodes as several would.
        lane_group=dist.new_group(backend=dist.get_backend(group)),
    )
    exchange.switch(exchange.prepare(Plan(codec=name)), residuals="carry")
    ddp.attach_ddp(model, exchange)
    random, results = torch.Generator().manual_seed(rank), []
    for step in range(1, NUM_STEPS + 1):
        wanted = [torch.randn(weight.shape, generator=random) for weight in model.module.weights]
        if step == SPOILED and rank == 0:
            wanted[2][3, 4] = torch.inf
        on_device = [one.to(device) for one in wanted]
        model.zero_grad()
        # DDP deals its buckets out anew after the first step.
        with nothing_waits(device) if step > 2 else nullcontext():
            model(on_device).backward()
        results.append(torch.cat([weight.grad.flatten().cpu() for weight in model.module.weights]))
    exchange.close()
    return results


@contextmanager
def nothing_waits(device: torch.device) -> Iterator[None]:
    """Raise RuntimeError if the host waits for the device, or for a compiler, meanwhile."""
    if device.type != "cuda":
        yield
        return
    import triton

    compiled: list[object] = []
    triton.knobs.runtime.jit_post_compile_hook = lambda **facts: compiled.append(facts.get("repr"))
    torch.cuda.synchronize(device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield
        torch.cuda.set_sync_debug_mode("default")
    triton.knobs.runtime.jit_post_compile_hook = None
    waits = [str(one.message) for one in caught if "synchroniz" in str(one.message)]
    if waits or compiled:
        raise RuntimeError(f"a step waited for the device or a compiler: {waits}, {compiled}")


def use_device_kernels() -> None:
    """Do nothing: tensors on the device find its kernels. Tests put the interpreter's in their place."""


def train_on_rank(rank: int, world_size: int, store: str, backend: str) -> None:
    """Train with every codec as one rank of `world_size`, on the device and on CPU; raises if a bit differs."""
    device = torch.device("cuda", rank) if backend == "nccl" else CPU
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
    assert dist.group.WORLD is not None
    on_cpu, size = dist.new_group(backend="gloo"), 1 if backend == "gloo" else 100
    wanted = {name: averages(name, on_cpu, CPU, size) for name in (*CASTS, *SCALED)}
    use_device_kernels()
    for name, truth in wanted.items():
        got = averages(name, dist.group.WORLD, device, size)
        # Backends may sum two-byte numbers of several ranks differently, each right to rounding.
        is_exact = name in SCALED or world_size == 1
        check_steps(f"{name}, {world_size} ranks", truth, got, is_exact)
    dist.destroy_process_group()


def check_steps(what: str, wanted: Sequence[Tensor], got: Sequence[Tensor], is_exact: bool) -> None:
    """Raise RuntimeError unless the averages of every step are the same, any NaN being as good as another."""
    for step, (one, other) in enumerate(zip(wanted, got, strict=True), 1):
        tolerance = 0.0 if is_exact else 2**-6
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise RuntimeError(f"{what}: the average of step {step} differs from that on CPU")
        if one.isfinite().all() == (step == SPOILED):
            raise RuntimeError(f"{what}: step {step} should be finite if and only if no gradient was spoiled")


def exchange(world_size: int, backend: str = "nccl") -> None:
    """Start the ranks and wait for them; raises what one of them raised."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(train_on_rank, (world_size, store, backend), nprocs=world_size)  # type: ignore[attr-defined, no-untyped-call]


def timing(backend: str = "nccl") -> None:
    """Check the agent's phases in a process of its own; raises what it raised."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(timing_on_rank, (store, backend, nothing_waits), nprocs=1)  # type: ignore[attr-defined, no-untyped-call]


def seconds_of(run: Callable[[], object], repetitions: int) -> float:
    """Return the median time of `run` on the current device, after it was compiled."""
    for _ in range(3):
        run()
    times: list[float] = []
    for _ in range(repetitions):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        run()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return sorted(times)[repetitions // 2]


def speed_rows(device: torch.device, repetitions: int) -> list[Row]:
    """Return GB/s of each kernel, all bytes read and written counted, beside those of a device copy."""
    n = NUM_ELEMENTS
    x, residual = torch.randn(n, device=device), torch.zeros(n, device=device)
    other = torch.empty_like(x)
    rows: list[Row] = []

    def add(name: str, operation: str, num_bytes: int, run: Callable[[], object]) -> None:
        seconds = seconds_of(run, repetitions)
        rate = num_bytes / seconds / 1e9
        share = rate / rows[0]["GB/s"] if rows else 1.0
        rows.append({"codec": name, "operation": operation, "ms": seconds * 1e3, "GB/s": rate, "of copy": share})

    add("", "copy", 8 * n, lambda: other.copy_(x))
    for name in SCALED:
        kernels, layout = kernels_for(name), layout_of(n, sizes_of(name)[0])
        sent, mean = payload_for(name, layout, device), payload_for(name, layout, device)
        size = sent.numel()
        add(name, "encode", 12 * n + size, lambda: kernels.encode(x, layout, residual, sent, residual))  # noqa: B023
        add(name, "decode", 4 * n + size, lambda: kernels.decode(sent, layout, other, 1.0, False))  # noqa: B023
        two = sent.repeat(2, 1)
        add(name, "reduce of 2", 8 * n + 3 * size, lambda: kernels.reduce(two, layout, residual, mean, other))  # noqa: B023
    exponent, largest = torch.zeros(1, dtype=torch.int32, device=device), torch.zeros(1, device=device)
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        casts, layout = kernels_for(name), layout_of(n, cast.BLOCK)
        wire = torch.empty(n, dtype=dtype, device=device)
        add(
            name,
            "encode",
            14 * n,
            lambda: casts.encode(x, layout, residual, wire, residual, 2, exponent, largest),  # noqa: B023
        )
        add(name, "decode", 6 * n, lambda: casts.decode(wire, layout, other, exponent))  # noqa: B023
    return rows


def measure(quick: bool) -> Result:
    """Check, then measure.

    Raises:
        RuntimeError: A result on the GPU differs from the reference in a bit.
    """
    device = torch.device("cuda", torch.cuda.current_device())
    check_all(device)
    num_gpus = torch.cuda.device_count()
    exchange(1)
    if num_gpus >= 2:
        exchange(2)
    timing()
    rows = speed_rows(device, 10 if quick else 50)
    slowest = min(row["of copy"] for row in rows if row["operation"] in ("encode", "decode"))
    name = torch.cuda.get_device_name(device)
    return Result(
        rows=rows,
        targets={
            f"slowest encode or decode against a copy on {name}": Target(slowest, "0.8 or more", slowest >= 0.8),
            "results equal the references, ranks up to": Target(min(num_gpus, 2), "1 or more", True),
        },
    )


def what_is_missing() -> str:
    """Return why there is nothing to measure here, empty if there is."""
    if not torch.cuda.is_available():
        return "no CUDA device here: nothing was checked or measured"
    try:
        import triton  # noqa: F401
    except ImportError:
        return "Triton is not installed: nothing was checked or measured (pip install triton)"
    return ""


if __name__ == "__main__":
    if missing := what_is_missing():
        print(missing)
        raise SystemExit(0)
    raise SystemExit(main("gpu_check", measure))
