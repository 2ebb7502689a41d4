"""The node's GPUs through NVIDIA's management library, where `nvidia-ml-py` and a driver are installed.

    pip install 'gradwire[nvml]'

Drivers answer some questions with numbers that mean "no answer": all ones, or the largest integer less a little.
What no GPU can reach is left out and counted, or one of them would ruin every chart.
"""

import contextlib
from collections.abc import Callable
from typing import Any

from gradwire_protocol.records import GpuFacts

# What no GPU reaches: per cent, bytes, milliwatts, megahertz, kibibytes counted on links.
_MAX_PERCENT = 100
_MAX_MEMORY_BYTES = 1 << 46
_MAX_MILLIWATTS = 100_000_000
_MAX_MEGAHERTZ = 20_000
_MAX_KIBIBYTES = 1 << 60

# Reasons for lower clocks that cost speed; idling and what the user asked for do not.
_THROTTLES = {
    "nvmlClocksEventReasonSwPowerCap": "power_cap",
    "nvmlClocksEventReasonHwSlowdown": "hardware_slowdown",
    "nvmlClocksEventReasonHwThermalSlowdown": "hardware_thermal",
    "nvmlClocksEventReasonHwPowerBrakeSlowdown": "power_brake",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal",
}
_MAX_LINKS = 18


class Gpus:
    """Reads all GPUs of the machine; one thread at a time."""

    def __init__(self, nvml: Any, handles: list[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        # By GPU: what its links had sent and received when last asked, kibibytes.
        self._link_counts: dict[int, tuple[int, int]] = {}
        # Values that no GPU can reach, since the beginning.
        self.num_invalid = 0

    def read(self) -> tuple[GpuFacts, ...]:
        """Return what every GPU says now; a question that one does not answer is None."""
        return tuple(self._read(index, handle) for index, handle in enumerate(self._handles))

    def close(self) -> None:
        """Let the library go."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _read(self, index: int, handle: Any) -> GpuFacts:
        nvml = self._nvml
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        total = None if memory is None else self._sound(memory.total, _MAX_MEMORY_BYTES)
        rates = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        percent = None if rates is None else self._sound(rates.gpu, _MAX_PERCENT)
        milliwatts = self._sound(self._ask(nvml.nvmlDeviceGetPowerUsage, handle), _MAX_MILLIWATTS)
        clock = self._sound(self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM), _MAX_MEGAHERTZ)
        top = self._sound(self._ask(nvml.nvmlDeviceGetMaxClockInfo, handle, nvml.NVML_CLOCK_SM), _MAX_MEGAHERTZ)
        sent, received = self._link_bytes(index, handle)
        return GpuFacts(
            index=index,
            name=str(self._ask(nvml.nvmlDeviceGetName, handle) or ""),
            utilisation_ratio=None if percent is None else percent / 100,
            memory_used_bytes=None if memory is None else self._sound(memory.used, total or _MAX_MEMORY_BYTES),
            memory_total_bytes=total,
            power_watts=None if milliwatts is None else milliwatts / 1e3,
            clock_hertz=None if clock is None else clock * 1e6,
            max_clock_hertz=None if top is None else top * 1e6,
            throttled_by=self._throttles(handle),
            num_nvlinks=self._num_links(handle),
            nvlink_sent_bytes=sent,
            nvlink_received_bytes=received,
        )

    def _throttles(self, handle: Any) -> tuple[str, ...]:
        reasons = self._ask(self._nvml.nvmlDeviceGetCurrentClocksEventReasons, handle)
        if reasons is None:
            return ()
        if reasons & ~self._nvml.nvmlClocksEventReasonAll:
            self.num_invalid += 1
            return ()
        return tuple(name for flag, name in _THROTTLES.items() if reasons & getattr(self._nvml, flag))

    def _num_links(self, handle: Any) -> int:
        states = (self._ask(self._nvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(_MAX_LINKS))
        return sum(state == self._nvml.NVML_FEATURE_ENABLED for state in states)

    def _link_bytes(self, index: int, handle: Any) -> tuple[int | None, int | None]:
        """Return what all links of a GPU sent and received since they were last asked, bytes."""
        nvml = self._nvml
        # All links together: that is what this scope means.
        scope = 0xFFFFFFFF
        fields = [
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, scope),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, scope),
        ]
        values = self._ask(nvml.nvmlDeviceGetFieldValues, handle, fields)
        if values is None or any(value.nvmlReturn != nvml.NVML_SUCCESS for value in values):
            return None, None
        sent, received = (self._sound(value.value.ullVal, _MAX_KIBIBYTES) for value in values)
        if sent is None or received is None:
            return None, None
        before = self._link_counts.get(index)
        self._link_counts[index] = (sent, received)
        if before is None or sent < before[0] or received < before[1]:
            return None, None
        return (sent - before[0]) * 1024, (received - before[1]) * 1024

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """Return the answer, None where this GPU or driver has none."""
        try:
            return question(*arguments)
        except self._nvml.NVMLError:
            return None

    def _sound(self, value: Any, limit: int) -> int | None:
        if value is None:
            return None
        if not 0 <= value <= limit:
            self.num_invalid += 1
            return None
        return int(value)


def open_gpus() -> Gpus | None:
    """Return the machine's GPUs; None without the library, a driver or a GPU."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return None
    return Gpus(pynvml, handles) if handles else None
