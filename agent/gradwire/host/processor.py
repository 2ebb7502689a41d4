"""Processor and memory as the operating system sees them."""

import os
from pathlib import Path

from msgspec import Struct

_PROCESSOR = Path("/proc/cpuinfo")
_TIMES = Path("/proc/stat")
_MEMORY = Path("/proc/meminfo")

# Instruction sets that decide how fast codecs run on the CPU, by the kernel's name of them.
_SETS = {"avx2": "AVX2", "avx512f": "AVX-512", "amx_tile": "AMX", "asimd": "NEON", "sve": "SVE"}


class Load(Struct, frozen=True):
    """What all cores together did since the machine started, seconds."""

    busy_seconds: float
    total_seconds: float


class Memory(Struct, frozen=True):
    """Main memory, bytes."""

    total_bytes: int
    # What programs could have without swapping.
    available_bytes: int


def cpu_name(path: Path = _PROCESSOR) -> str:
    """Return the processor's model name, empty where the system does not say."""
    return next((value for name, value in _pairs(path) if name == "model name"), "")


def instruction_sets(path: Path = _PROCESSOR) -> tuple[str, ...]:
    """Return the processor's vector instructions, empty where the system does not say."""
    flags = next((value.split() for name, value in _pairs(path) if name in ("flags", "Features")), [])
    return tuple(name for flag, name in _SETS.items() if flag in flags)


def num_cores() -> int:
    """Return the cores of the machine, also those that this process is bound away from: a node has many ranks."""
    return os.cpu_count() or 1


def load(path: Path = _TIMES) -> Load | None:
    """Return what the machine's cores did; None where the system does not say."""
    try:
        first, *_ = path.read_text().splitlines()
    except (OSError, ValueError):
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    # user nice system idle iowait irq softirq steal; what guests take is part of user.
    times = [int(number) / ticks for number in first.split()[1:9]]
    return Load(sum(times) - times[3] - times[4], sum(times))


def memory(path: Path = _MEMORY) -> Memory | None:
    """Return the machine's memory; None where the system does not say."""
    kilobytes = {name: value.split()[0] for name, value in _pairs(path)}
    try:
        return Memory(int(kilobytes["MemTotal"]) * 1024, int(kilobytes["MemAvailable"]) * 1024)
    except (KeyError, ValueError):
        return None


def _pairs(path: Path) -> list[tuple[str, str]]:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return []
    pairs = (line.partition(":") for line in lines)
    return [(name.strip(), value.strip()) for name, colon, value in pairs if colon and value.strip()]
