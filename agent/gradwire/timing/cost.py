"""The agent's own cost: what its threads spend, and how many steps it may trace within its budget."""

import threading
import time
from pathlib import Path

from gradwire_protocol.records import Event

# Share of training time that the agent may take.
BUDGET = 0.01
# What the agent sees of its cost is about half of it: the calls from DDP and what it leaves in caches are not seen.
_SEEN = 0.5
# Below this part of the budget more steps are traced again; far enough from 1 that the stride does not swing.
_EASY = 0.4
# Of shorter steps not every one is traced: some six a second tell as much. Steps must become four times as long
# before the stride is halved again.
_CLOSEST_SECONDS = 0.1
# At least two steps of a window of a second are traced, however short steps are up to a bound.
_LONGEST_STRIDE_SECONDS = 0.5
_LONGEST_STRIDE = 64

# Threads of the agent. The Lane is not one of them: it moves gradients, and its codecs are measured as such.
_OWN_THREADS = "gradwire-"
_LANE = "gradwire-lane"


class OwnCost:
    """Watches one model's agent; used by the recorder's thread, what it wants is read by the training thread.

    Args:
        budget: Most that the agent should take, share of training time; the longer the stride the less it takes.
    """

    def __init__(self, budget: float = BUDGET) -> None:
        self._budget = budget
        self._threads_before = thread_seconds()
        # One in so many steps would be traced without a budget.
        self.usual_stride = 1
        # So many times as rare everything becomes for the budget.
        self.economy = 1
        # The stride that steps are short enough for.
        self._longest = 1

    @property
    def stride(self) -> int:
        """One in so many steps is traced, by this rank's wish; the largest wish of all ranks counts."""
        return min(self.usual_stride * self.economy, self._longest)

    def take_thread_seconds(self) -> float:
        """Return the CPU time that the agent's threads have taken since the last call, seconds."""
        now = thread_seconds()
        spent = sum(max(0.0, seconds - self._threads_before.get(ident, 0.0)) for ident, seconds in now.items())
        self._threads_before = now
        return spent

    def judge(self, agent_seconds: float, training_seconds: float, num_steps: int) -> None:
        """Lengthen or shorten the stride by how long the steps of a window were, and what they have cost."""
        if training_seconds <= 0 or num_steps <= 0:
            return
        step = training_seconds / num_steps
        self._longest = min(max(1, int(_LONGEST_STRIDE_SECONDS / step)), _LONGEST_STRIDE)
        while self.usual_stride * step < _CLOSEST_SECONDS and self.usual_stride < self._longest:
            self.usual_stride *= 2
        while self.usual_stride > 1 and self.usual_stride * step > 4 * _CLOSEST_SECONDS:
            self.usual_stride //= 2
        share = agent_seconds / training_seconds / _SEEN
        if share > self._budget and self.stride < self._longest:
            self.economy *= 2
        elif share < _EASY * self._budget:
            self.economy = max(1, self.economy // 2)


def stride_event(step: int, stride: int) -> Event:
    """Say that from now on only one in `stride` steps is traced."""
    message = f"one in {stride} steps is traced from now on, to keep what measuring costs within its budget"
    return Event(at=time.time(), step=step, kind="traced", message=message, data={"stride": stride})


def thread_seconds() -> dict[int, float]:
    """Return the CPU time of each of the agent's threads, seconds; empty where the kernel does not tell.

    Several models attached in one process share their threads' time: each counts all of it.
    """
    spent = {}
    for thread in threading.enumerate():
        if thread.native_id is not None and thread.name.startswith(_OWN_THREADS) and thread.name != _LANE:
            try:
                # Nanoseconds on a CPU come first.
                text = Path(f"/proc/self/task/{thread.native_id}/schedstat").read_text()
                spent[thread.native_id] = int(text.split()[0]) / 1e9
            except (OSError, ValueError, IndexError):
                # The thread has ended meanwhile, or this is no Linux.
                continue
    return spent
