"""The whole demo as a user starts it, and every way to end it."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from examples.demo.story import Schedule

pytestmark = [pytest.mark.distributed, pytest.mark.netns, pytest.mark.timeout(420)]

ROOT = Path(__file__).parents[2]
START_DEADLINE_SECONDS = 120.0


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "examples.demo", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines_until(process: subprocess.Popen[str], pattern: str) -> Iterator[str]:
    """Yield what the demo prints up to a line that matches; its own time-outs end the wait otherwise."""
    assert process.stdout is not None
    for line in process.stdout:
        yield line.rstrip("\n")
        if re.search(pattern, line):
            return
    pytest.fail(f"the demo ended without a line like {pattern!r}")


def mentions(folder: Path) -> list[str]:
    """Live processes that name the folder in their arguments."""
    listing = subprocess.run(["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listing.splitlines() if str(folder) in line and not line.startswith("Z")]


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Not made yet, and short: the address of a Unix socket in it must stay below 108 bytes.
    return tmp_path_factory.mktemp("d") / "data"


def test_demo_measures_compresses_and_rolls_back() -> None:
    process = start("--steps", "60", "--exit")
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    first, *_, last = output.splitlines()
    assert re.fullmatch(r"log in at http://127\.0\.0\.1:\d+/login/\S+", first)
    figures: dict[str, Any] = json.loads(last)
    assert figures["steps"] == 60
    assert figures["ranks"] == figures["rollback"]["ranks"] == 2
    assert figures["link"].startswith("1 Gbit/s")
    assert figures["replicas_equal"] is True
    assert figures["loss_last"] < figures["loss_first"]
    assert set(figures["step_seconds"]) == set(figures["exposed_transfer_share"]) == {"none", "int8"}
    assert all(0 < share < 1 for share in figures["exposed_transfer_share"].values())
    assert figures["speedup"] == pytest.approx(
        figures["step_seconds"]["none"] / figures["step_seconds"]["int8"], rel=1e-2
    )
    schedule = Schedule.of(60, rolls_back=True)
    assert schedule.compress_at < figures["rollback"]["step"] <= 60
    assert figures["rollback"]["requested_to_last_rank_seconds"] > 0


def test_interrupted_demo_ends_training_at_one_step_and_leaves_nothing(folder: Path) -> None:
    process = start("--data", str(folder))
    list(lines_until(process, r"^step 10 "))
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert "stopping" in output
    assert mentions(folder) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_ended_demo_leaves_no_process(folder: Path, number: signal.Signals) -> None:
    process = start("--data", str(folder))
    list(lines_until(process, r"^watch it at "))
    process.send_signal(number)
    process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert mentions(folder) == []


def test_killed_demo_takes_its_ranks_along(folder: Path) -> None:
    process = start("--data", str(folder))
    list(lines_until(process, r"^watch it at "))
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while left := mentions(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
