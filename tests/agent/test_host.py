"""What is read of a machine: real files of this one, made-up ones, and GPUs through a fake of NVIDIA's library."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
from gradwire.host import network, processor
from gradwire.host.gpus import Gpus, open_gpus
from gradwire.host.watch import HostWatch, Sampler
from gradwire_protocol.coding import encode, validate_record
from gradwire_protocol.records import HostWindow
from scripted_server import wait_until

PROC_NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo: 100 1 0 0 0 0 0 0 100 1 0 0 0 0 0 0
  eth0: 5000 9 2 1 0 0 0 0 7000 9 3 4 0 0 0 0
"""

UNKNOWN = 0xFFFFFFFF


def test_interface_counters_are_read_by_column(tmp_path: Path) -> None:
    path = tmp_path / "dev"
    path.write_text(PROC_NET_DEV)
    assert network.traffic("eth0", path) == network.Traffic(5000, 7000, 10)
    assert network.traffic("eth1", path) is None
    assert network.traffic("eth0", tmp_path / "missing") is None
    assert network.traffic("lo") is not None


def test_nominal_speed_is_a_device_s(tmp_path: Path) -> None:
    for name, speed in (("eth0", "25000\n"), ("down", "-1\n")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "speed").write_text(speed)
    (tmp_path / "veth").mkdir()
    (tmp_path / "veth" / "speed").write_text("10000\n")
    assert network.nominal_bytes_per_second("eth0", tmp_path) == 25e9 / 8
    assert network.nominal_bytes_per_second("down", tmp_path) is None
    assert network.nominal_bytes_per_second("veth", tmp_path) is None
    assert network.nominal_bytes_per_second("", tmp_path) is None


def test_processor_is_read_as_the_system_writes_it(tmp_path: Path) -> None:
    cpuinfo, stat, meminfo = (tmp_path / name for name in ("cpuinfo", "stat", "meminfo"))
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast One\nflags\t\t: fpu avx2 avx512f\n")
    stat.write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 100 0 50 800 50 0 0 0 0 0\n")
    meminfo.write_text("MemTotal:       1000 kB\nMemFree:         100 kB\nMemAvailable:    400 kB\n")
    assert processor.cpu_name(cpuinfo) == "Fast One"
    assert processor.instruction_sets(cpuinfo) == ("AVX2", "AVX-512")
    found = processor.load(stat)
    assert found is not None
    assert found.busy_seconds / found.total_seconds == pytest.approx(0.15)
    assert processor.memory(meminfo) == processor.Memory(1_024_000, 409_600)
    missing = tmp_path / "missing"
    assert (processor.cpu_name(missing), processor.load(missing), processor.memory(missing)) == ("", None, None)


class FakeNvml:
    """Answers as NVIDIA's library does for one GPU; `says` overrides single answers."""

    # Names, numbers and errors are the real library's, or the fake would agree with whatever is asked.
    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self.says: dict[str, Any] = {}
        self.sent_kibibytes = 1000

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if not name.startswith("nvml") or not callable(real):
            return real
        return lambda *arguments: self._answer(name, *arguments)

    def _answer(self, name: str, *arguments: Any) -> Any:
        if name in self.says:
            if isinstance(self.says[name], Exception):
                raise self.says[name]
            return self.says[name]
        answers: dict[str, Callable[[], Any]] = {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda: "handle",
            "nvmlDeviceGetName": lambda: "H200",
            "nvmlDeviceGetMemoryInfo": lambda: SimpleNamespace(total=150 << 30, used=60 << 30),
            "nvmlDeviceGetUtilizationRates": lambda: SimpleNamespace(gpu=97, memory=30),
            "nvmlDeviceGetPowerUsage": lambda: 612_500,
            "nvmlDeviceGetClockInfo": lambda: 1500,
            "nvmlDeviceGetMaxClockInfo": lambda: 1980,
            "nvmlDeviceGetCurrentClocksEventReasons": lambda: pynvml.nvmlClocksEventReasonSwPowerCap,
            "nvmlDeviceGetNvLinkState": lambda: int(arguments[1] < 2),
            "nvmlDeviceGetFieldValues": self._fields,
        }
        return answers[name]()

    def _fields(self) -> list[Any]:
        value = SimpleNamespace(ullVal=self.sent_kibibytes)
        return [SimpleNamespace(nvmlReturn=pynvml.NVML_SUCCESS, value=value) for _ in range(2)]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)  # type: ignore[arg-type]
    return fake


def open_fake() -> Gpus:
    gpus = open_gpus()
    assert gpus is not None
    return gpus


def test_gpu_says_what_the_library_says_in_plain_units(nvml: FakeNvml) -> None:
    gpus = open_fake()
    (first,) = gpus.read()
    assert (first.name, first.utilisation_ratio, first.power_watts) == ("H200", 0.97, 612.5)
    assert (first.clock_hertz, first.max_clock_hertz) == (1.5e9, 1.98e9)
    assert (first.memory_used_bytes, first.memory_total_bytes) == (60 << 30, 150 << 30)
    assert (first.throttled_by, first.num_nvlinks) == (("power_cap",), 2)
    assert first.nvlink_sent_bytes is None, "a first count has nothing to be compared with"
    nvml.sent_kibibytes += 50
    (second,) = gpus.read()
    assert (second.nvlink_sent_bytes, second.nvlink_received_bytes) == (51_200, 51_200)
    nvml.sent_kibibytes = 3
    assert gpus.read()[0].nvlink_sent_bytes is None, "the counter began anew"
    assert gpus.num_invalid == 0


@pytest.mark.parametrize(
    ("name", "answer", "field"),
    [
        ("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=UNKNOWN, memory=0), "utilisation_ratio"),
        ("nvmlDeviceGetUtilizationRates", SimpleNamespace(gpu=808334905, memory=0), "utilisation_ratio"),
        ("nvmlDeviceGetPowerUsage", UNKNOWN, "power_watts"),
        ("nvmlDeviceGetClockInfo", UNKNOWN, "clock_hertz"),
        ("nvmlDeviceGetMaxClockInfo", -1, "max_clock_hertz"),
        ("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=150 << 30, used=140737488355328), "memory_used_bytes"),
    ],
)
def test_value_that_no_gpu_reaches_is_left_out_and_counted(
    nvml: FakeNvml, name: str, answer: Any, field: str
) -> None:
    nvml.says[name] = answer
    gpus = open_fake()
    assert getattr(gpus.read()[0], field) is None
    assert gpus.num_invalid == 1
    gpus.read()
    assert gpus.num_invalid == 2


def test_blank_counters_and_reasons_are_left_out_too(nvml: FakeNvml) -> None:
    nvml.sent_kibibytes = 9223372036854775794
    nvml.says["nvmlDeviceGetCurrentClocksEventReasons"] = 0x7FFFFFFFFFFFFFF0
    gpus = open_fake()
    (gpu,) = gpus.read()
    assert (gpu.nvlink_sent_bytes, gpu.throttled_by) == (None, ())
    assert gpus.num_invalid == 3


def test_what_a_gpu_does_not_answer_is_unknown_and_no_fault(nvml: FakeNvml) -> None:
    refused = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    for name in ("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"):
        nvml.says[name] = refused
    gpus = open_fake()
    (gpu,) = gpus.read()
    assert (gpu.power_watts, gpu.num_nvlinks, gpu.nvlink_sent_bytes) == (None, 0, None)
    assert gpu.utilisation_ratio == 0.97
    assert gpus.num_invalid == 0


def test_machine_without_driver_or_library_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine has the library and no driver; without the library nothing can be imported."""
    assert open_gpus() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus() is None


def test_sample_is_what_happened_since_the_last_one(nvml: FakeNvml) -> None:
    sampler = Sampler("lo", open_fake())
    nvml.sent_kibibytes += 4
    window = sampler.sample()
    validate_record(window, field="record")
    encode(window)
    assert window.interface == "lo"
    assert window.received_bytes is not None
    assert window.num_errors == 0
    assert window.num_cores >= 1
    assert window.memory_used_bytes is not None
    assert window.memory_total_bytes is not None
    assert 0 < window.memory_used_bytes < window.memory_total_bytes
    assert window.gpus[0].nvlink_sent_bytes == 4096
    assert Sampler("no such", None).sample().sent_bytes is None


def test_cores_are_the_nodes_and_not_those_that_a_launcher_bound_the_process_to() -> None:
    # Another process, since an affinity that is not put back would slow all other tests down.
    script = """
import os
from gradwire.host.processor import num_cores
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(num_cores())
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(said.stdout) == os.cpu_count()


def test_watch_reports_when_it_is_closed_and_survives_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    taken: list[HostWindow] = []
    watch = HostWatch("lo", taken.append)
    watch.close()
    assert len(taken) == 1
    assert not watch.is_alive()

    def refuse(_window: HostWindow) -> None:
        raise OSError("no room")

    broken = HostWatch("lo", refuse)
    broken.close()
    wait_until(lambda: not broken.is_alive())
    assert "training is not affected" in caplog.text
