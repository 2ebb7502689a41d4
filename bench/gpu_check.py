"""The Triton kernels on a real GPU: equal to the references bit for bit, and how fast; `python -m bench.gpu_check`.

Without a CUDA device, or without Triton, it says so and shows no figures. No speed is shown unless all results are
equal. Gradwire does not average CUDA gradients with a codec yet; this measures what that will be built on.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from gradwire_compression.buckets import pack
from gradwire_compression.codecs import cast, registry
from gradwire_compression.collectives import compat
from gradwire_compression.kernels import dispatch
from gradwire_compression.kernels.blocks import payload_bytes
from gradwire_compression.kernels.cast.reference import ReferenceCastKernels
from gradwire_compression.layout import Layout
from torch import Tensor
from torch.distributed import ProcessGroup

from bench.runner import Result, Row, Target, main

SCALED = ("int8", "fp8", "int4", "onebit", "topk")
CASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Powers of two that elements are multiplied by.
EXPONENTS = {"bf16": 0, "fp16": 3}
CPU = torch.device("cpu")
SIZES = (1, 255, 4097, 1_000_003)
# 256 MiB of float32: far more than any cache holds.
NUM_ELEMENTS = 64 * 1024 * 1024
NUM_RANKS = 3


def layout_of(num_elements: int, block: int, offset: int = 0) -> Layout:
    """Return the blocks of one tensor that begins at `offset` of its bucket."""
    return Layout.build(pack([("before", offset), ("tensor", num_elements)])[1:], block)


def block_of(name: str) -> int:
    """Return the codec's default block."""
    return cast.BLOCK if name in CASTS else int(registry.facts(name).parameters[0].default)


def payload_for(name: str, layout: Layout, device: torch.device) -> Tensor:
    """Return an uninitialised payload."""
    size = payload_bytes(layout.num_blocks, dispatch.value_bytes(name, layout.block))
    return torch.empty(size, dtype=torch.uint8, device=device)


def check_scaled(name: str, kernels: Any, num_elements: int, offset: int, device: torch.device) -> None:
    """Encode, decode and reduce on `device` and with the reference on CPU.

    Raises:
        RuntimeError: A result differs in a bit.
    """
    layout = layout_of(num_elements, block_of(name), offset)
    x, residual = torch.randn(num_elements + offset), torch.randn(num_elements) * 0.01
    results = []
    for side, place in ((dispatch.reference_kernels(name), CPU), (kernels, device)):
        payload, mean = payload_for(name, layout, place), payload_for(name, layout, place)
        new, owner = (torch.empty(num_elements, device=place) for _ in range(2))
        out = torch.zeros(num_elements + offset, device=place)
        side.encode(x.to(place), layout, residual.to(place), payload, new)
        side.decode(payload, layout, out, 1.0, False)
        payloads = payload.repeat(NUM_RANKS, 1)
        side.reduce(payloads, layout.compact(), residual.to(place), mean, owner)
        results.append((payload, new, out, mean, owner))
    compare(name, num_elements, ("payload", "residual", "decoded", "mean", "owner's residual"), results)


def check_cast(name: str, kernels: Any, num_elements: int, offset: int, device: torch.device) -> None:
    """Encode and decode a cast on `device` and with the reference on CPU; raises as `check_scaled` does."""
    layout = layout_of(num_elements, cast.BLOCK, offset)
    x, residual = torch.randn(num_elements + offset), torch.randn(num_elements) * 0.01
    results = []
    for side, place in ((ReferenceCastKernels(), CPU), (kernels, device)):
        wire, new = torch.empty(num_elements, dtype=CASTS[name], device=place), residual.to(place, copy=True)
        out, largest = torch.zeros(num_elements + offset, device=place), torch.empty(1, device=place)
        exponent = torch.tensor([EXPONENTS[name]], dtype=torch.int32, device=place)
        side.encode(x.to(place), layout, new, wire, new, NUM_RANKS, exponent, largest)
        side.decode(wire, layout, out, exponent)
        # Only fp16 has to know it.
        noted = largest if name == "fp16" else torch.zeros(1)
        results.append((wire.view(torch.int16), new, out, noted))
    compare(name, num_elements, ("wire", "residual", "decoded", "largest magnitude"), results)


def compare(name: str, size: int, parts: tuple[str, ...], results: Sequence[tuple[Tensor, ...]]) -> None:
    """Raise RuntimeError unless both results hold equal bits."""
    for part, wanted, got in zip(parts, *results, strict=True):
        if not torch.equal(wanted.view(torch.uint8), got.cpu().view(torch.uint8)):
            raise RuntimeError(f"{name}, {size} elements: the {part} differs from the reference")


def check_all(device: torch.device, sizes: tuple[int, ...] = SIZES) -> None:
    """Compare every kernel with its reference, for aligned and odd offsets; raises as `check_scaled` does."""
    from gradwire_compression.kernels import cuda

    torch.manual_seed(0)
    for size in sizes:
        for offset in (0, 3):
            for name in CASTS:
                check_cast(name, cuda.TritonCastKernels(name), size, offset, device)
            for name in SCALED:
                check_scaled(name, cuda.TritonKernels(name), size, offset, device)


def check_exchange(name: str, group: ProcessGroup, device: torch.device, num_elements: int) -> None:
    """Average over the group in two phases, with the kernels and with the references; raises if a bit differs."""
    from gradwire_compression.kernels import cuda

    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    whole = layout_of(num_elements, block_of(name))
    per_rank = -(-whole.num_blocks // world_size)
    shards = [whole.shard(index * per_rank, per_rank) for index in range(world_size)]
    x = torch.randn(num_elements, generator=torch.Generator().manual_seed(rank))
    results = []
    for side, computes in ((dispatch.reference_kernels(name), CPU), (cuda.TritonKernels(name), device)):
        buffer, residual = x.to(computes, copy=True), torch.zeros(num_elements, device=computes)
        sent = torch.stack([payload_for(name, shard, computes) for shard in shards])
        for shard, payload in zip(shards, sent, strict=True):
            part = residual[shard.start : shard.start + shard.numel]
            side.encode(buffer, shard, part, payload, part)
        # The collective always runs on the device, so that only the arithmetic differs.
        received = torch.empty_like(sent, device=device)
        compat.start_all_to_all(received.view(-1), sent.to(device).view(-1), group).wait()
        owned, mean = shards[rank].compact(), payload_for(name, shards[rank], computes)
        zeros, owner = (torch.zeros(owned.numel, device=computes) for _ in range(2))
        side.reduce(received.to(computes), owned, zeros, mean, owner)
        compat.start_all_gather(received.view(-1), mean.to(device), group).wait()
        for shard, payload in zip(shards, received.to(computes), strict=True):
            side.decode(payload, shard, buffer, 1.0, False)
        results.append((buffer, residual, owner))
    compare(f"{name}, {world_size} ranks", num_elements, ("average", "residual", "owner's residual"), results)


def exchange_on_rank(rank: int, world_size: int, store: str, backend: str) -> None:
    """Run `check_exchange` for every codec as one rank of `world_size`."""
    device, num_elements = (torch.device("cuda", rank), 100_003) if backend == "nccl" else (CPU, 5_003)
    if backend == "nccl":
        torch.cuda.set_device(device)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world_size)
    assert dist.group.WORLD is not None
    for name in SCALED:
        check_exchange(name, dist.group.WORLD, device, num_elements)
    dist.destroy_process_group()


def exchange(world_size: int, backend: str = "nccl") -> None:
    """Start the ranks and wait for them; raises what one of them raised."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        mp.spawn(exchange_on_rank, (world_size, store, backend), nprocs=world_size)  # type: ignore[attr-defined, no-untyped-call]


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
    from gradwire_compression.kernels import cuda

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
        kernels, layout = cuda.TritonKernels(name), layout_of(n, block_of(name))
        sent, mean = payload_for(name, layout, device), payload_for(name, layout, device)
        size = sent.numel()
        add(name, "encode", 12 * n + size, lambda: kernels.encode(x, layout, residual, sent, residual))  # noqa: B023
        add(name, "decode", 4 * n + size, lambda: kernels.decode(sent, layout, other, 1.0, False))  # noqa: B023
        two = sent.repeat(2, 1)
        add(name, "reduce of 2", 8 * n + 3 * size, lambda: kernels.reduce(two, layout, residual, mean, other))  # noqa: B023
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
