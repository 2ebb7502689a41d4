"""Wall clocks: no duration comes from them; where they jump or disagree, the run's history says so."""

import time
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from gradwire_protocol.records import Event

# What is worth a line: below it a clock is as good as NTP keeps it, or as a busy machine lets us read it.
LEAST_SECONDS = 2.0


class WallClock:
    """The process's wall clock, watched against the monotonic one; costs two clock reads a call."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()

    def jump(self, step: int, rank: int) -> Event | None:
        """Return an event if the clock was set since the last call."""
        ahead = time.time() - time.monotonic()
        seconds, self._ahead = ahead - self._ahead, ahead
        if abs(seconds) < LEAST_SECONDS:
            return None
        return Event(
            at=time.time(),
            step=step,
            kind="clock_jumped",
            message=f"the clock of rank {rank} jumped by {seconds:+.0f} s; order is by step and by server receipt",
            rank=rank,
            level="warning",
            data={"rank": rank, "seconds": seconds},
        )


def offsets(group: dist.ProcessGroup) -> tuple[float, ...]:
    """Return the seconds by which each rank's clock is ahead of rank 0's; collective, right after another one."""
    everybody: list[Any] = [0.0] * dist.get_world_size(group)
    dist.all_gather_object(everybody, time.time(), group=group)
    return tuple(seconds - everybody[0] for seconds in everybody)


def skews(ahead: Sequence[float], step: int) -> list[Event]:
    """Return an event for each rank whose clock is not rank 0's."""
    return [
        Event(
            at=time.time(),
            step=step,
            kind="clock_skew",
            message=f"the clock of rank {rank} is {seconds:+.0f} s from that of rank 0",
            rank=rank,
            level="warning",
            data={"rank": rank, "seconds": seconds},
        )
        for rank, seconds in enumerate(ahead)
        if abs(seconds) >= LEAST_SECONDS
    ]
