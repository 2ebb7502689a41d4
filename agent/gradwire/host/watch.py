"""Watches one node: what its network, cores, memory and GPUs did, again and again."""

import logging
import threading
import time
from collections.abc import Callable

from gradwire_protocol.records import HostWindow

from gradwire.host.gpus import Gpus, open_gpus
from gradwire.host.network import Traffic, traffic
from gradwire.host.processor import Load, load, memory, num_cores

log = logging.getLogger("gradwire")

# What cores and network did is a difference between two readings, so nothing is lost in between; a GPU's own
# utilisation is that of its last second.
INTERVAL_SECONDS = 5.0


class Sampler:
    """Turns what the system counts into what happened since the last sample."""

    def __init__(self, interface: str, gpus: Gpus | None) -> None:
        self._interface = interface
        self._gpus = gpus
        self._at = time.monotonic()
        self._load = load()
        self._traffic = self._first_traffic = traffic(interface)
        if gpus is not None:
            # Links count up from here.
            gpus.read()

    def sample(self) -> HostWindow:
        """Return what happened since the last call, or since this began. Cost: below 0.1 ms of CPU without GPUs."""
        now, spent, counted, free = time.monotonic(), load(), traffic(self._interface), memory()
        gpus = self._gpus.read() if self._gpus is not None else ()
        window = HostWindow(
            at=time.time(),
            seconds=now - self._at,
            num_cores=num_cores(),
            cpu_ratio=_busy(self._load, spent),
            memory_used_bytes=None if free is None else free.total_bytes - free.available_bytes,
            memory_total_bytes=None if free is None else free.total_bytes,
            interface=self._interface,
            received_bytes=_difference(self._traffic, counted, lambda one: one.received_bytes),
            sent_bytes=_difference(self._traffic, counted, lambda one: one.sent_bytes),
            num_errors=_difference(self._first_traffic, counted, lambda one: one.num_errors),
            gpus=gpus,
            num_invalid=0 if self._gpus is None else self._gpus.num_invalid,
        )
        self._at, self._load, self._traffic = now, spent, counted
        return window


class HostWatch(threading.Thread):
    """Reports a node's samples until it is closed; on the node's first rank only, never raises into training."""

    def __init__(self, interface: str, report: Callable[[HostWindow], None]) -> None:
        """Begin at once; `report` is called on this thread."""
        super().__init__(name="gradwire-host", daemon=True)
        self._interface = interface
        self._report = report
        self._closing = threading.Event()
        self.start()

    def run(self) -> None:
        """Sample until closed, and once more then; what cannot be read is logged once and ends the watch."""
        gpus = None
        try:
            gpus = open_gpus()
            sampler = Sampler(self._interface, gpus)
            is_closing = False
            while not is_closing:
                is_closing = self._closing.wait(INTERVAL_SECONDS)
                self._report(sampler.sample())
        except Exception:
            log.exception("gradwire: this node's facts are not watched any more; training is not affected")
        finally:
            if gpus is not None:
                gpus.close()

    def close(self, timeout_seconds: float = 1.0) -> None:
        """Report once more and end."""
        self._closing.set()
        self.join(timeout_seconds)


def _busy(before: Load | None, after: Load | None) -> float | None:
    """Return the share of all cores' time that was spent working, None where the system does not say."""
    if before is None or after is None or after.total_seconds <= before.total_seconds:
        return None
    share = (after.busy_seconds - before.busy_seconds) / (after.total_seconds - before.total_seconds)
    return min(1.0, max(0.0, share))


def _difference(before: Traffic | None, after: Traffic | None, read: Callable[[Traffic], int]) -> int | None:
    """Return by how much a counter grew; None where it is not there or began anew."""
    if before is None or after is None or read(after) < read(before):
        return None
    return read(after) - read(before)
