"""Room: whether what a plan allocates fits into the memory that is free."""

from pathlib import Path

import torch

from gradwire_compression.errors import PlanError
from gradwire_compression.ranks import Ranks

_MEMORY = Path("/proc/meminfo")
# Of the container that this process is in, where there is one with a limit.
_GROUP_LIMIT, _GROUP_USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
_GROUP_DETAILS = Path("/sys/fs/cgroup/memory.stat")


def check_room(codec: str, num_bytes: int, ranks: Ranks) -> None:
    """Refuse what does not fit, before anything is allocated: a process that is killed for memory gives no reason.

    Args:
        codec: Named in the error.
        num_bytes: What one rank allocates.
        ranks: All of them do at the same time; those of a node share its memory, if it is not a GPU's.

    Raises:
        PlanError: States both figures.
    """
    is_shared = ranks.device.type != "cuda"
    free = free_bytes(ranks.device)
    needed = num_bytes * (ranks.num_on_node if is_shared else 1)
    if free is None or needed <= free:
        return
    whose = f"for the {ranks.num_on_node} ranks of this node" if is_shared else "on this GPU"
    raise PlanError(
        f"{codec} needs {readable(needed)} of memory {whose} and {readable(free)} are free; compress less of the "
        "model (min_elements, exempt_patterns), or use none"
    )


def free_bytes(device: torch.device) -> int | None:
    """Return the bytes that can still be allocated on `device`, None where nobody says."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What the allocator holds and nobody uses.
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    known = [size for size in (_free_of_host(), _free_of_group()) if size is not None]
    return min(known, default=None)


def readable(num_bytes: float) -> str:
    """Return a number of bytes in decimal units, with three digits."""
    power = 0
    while num_bytes >= 999.5 and power < 5:
        num_bytes, power = num_bytes / 1000, power + 1
    digits = 0 if power == 0 or num_bytes >= 99.95 else 1 if num_bytes >= 9.995 else 2
    return f"{num_bytes:.{digits}f} {('B', 'kB', 'MB', 'GB', 'TB', 'PB')[power]}"


def _free_of_host() -> int | None:
    try:
        lines = dict(line.split(":", 1) for line in _MEMORY.read_text().splitlines())
        return 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None


def _free_of_group() -> int | None:
    try:
        used = int(_GROUP_USED.read_text())
        details = dict(line.split() for line in _GROUP_DETAILS.read_text().splitlines())
        # Files that were read are dropped before anything is refused.
        return int(_GROUP_LIMIT.read_text()) - used + int(details.get("inactive_file", 0))
    except (OSError, ValueError):
        # Without a limit it says "max".
        return None
