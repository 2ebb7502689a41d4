"""What the agent costs: the same training with the agent off, measuring only, and with everything it does.

Two ranks on this machine train a small byte transformer. A step of 20 ms or 200 ms computes a quarter of that time
and waits for the rest, as a training thread waits for its device: other work on the machine then disturbs little
of it, and what a step costs more is seen. In "busy" steps all of the time is computed, on as many cores as there
are ranks. Each mode is compared with "off" in the same processes, block by block in turn; "measuring, pulse and
stream" reports to a real server in a process of its own on the same machine. "torch's own hook" is the
communication hook of PyTorch that averages as DDP does and no more: what any hook costs. `traceml-ai` is installed
by name into a folder of its own and compared in processes of its own; its patches are taken out of torch while
"off" trains, but its threads go on, which speaks for it.

Overhead is the mode's time over that of "off", less one, within each round; the figure is the median over rounds,
with the interval of 95 % that resampling the rounds gives. "CPU" is what the training thread works more, by the
same rounds, and then what the mode's threads work while it trains alone, both as shares of one core: where no core
is idle, that is time too. "own figure" is what the agent says of itself on the run's page. Before anything is
reported both modes must have trained to the same bits, and the server must have the windows.
"""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.numbers import middle, quotients
from bench.overhead_rank import HOOK, MEASURING, OFF, PEER, STREAMING, Case
from bench.ranks import ROOT
from bench.runner import Result, Row, Target, main
from examples.demo.service import Server

FULL = (
    Case("20 ms", HOOK, 20, 10, 100),
    Case("20 ms", MEASURING, 20, 10, 100),
    Case("20 ms", STREAMING, 20, 10, 100),
    Case("200 ms", STREAMING, 200, 3, 20),
    Case("20 ms, busy", STREAMING, 20, 10, 100, is_busy=True),
)
QUICK = (
    Case("20 ms", MEASURING, 20, 10, 20),
    Case("20 ms", STREAMING, 20, 10, 20),
    Case("200 ms", STREAMING, 200, 2, 6),
)
PEER_FULL = (Case("20 ms", PEER, 20, 10, 100),)
PEER_QUICK = (Case("20 ms", PEER, 20, 10, 15),)
LIMIT_SECONDS = 600.0
INSTALL_SECONDS = 120.0
START_SECONDS = 20.0

MOST_AT_20_MS, MOST_AT_200_MS = 0.01, 0.005
NUM_RESAMPLES = 4000

# Places in a block's times.
CLOCK, CPU = 0, 1

# What `bench.overhead_rank` says of one case.
Outcome = dict[str, Any]


@dataclass(frozen=True)
class Overhead:
    """A share of the step time with its interval of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2%} ({self.low:.2%} to {self.high:.2%})"


def measure(quick: bool) -> Result:
    """Run all comparisons.

    Raises:
        RuntimeError: A rank failed, modes trained to different bits, or the server has no windows.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        outcomes = _run_ours(folder, QUICK if quick else FULL)
        reason = ""
        try:
            outcomes += _run_peer(folder, PEER_QUICK if quick else PEER_FULL)
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            reason = str(error).strip().splitlines()[-1]
    return judge(outcomes, reason)


def judge(outcomes: Sequence[Outcome], reason: str) -> Result:
    """Return rows and targets.

    Args:
        outcomes: What rank 0 printed of each case, the agent's own figure added.
        reason: Why the peer has none, empty if it has.
    """
    rows = [row for outcome in outcomes for row in _rows(outcome)]
    if reason:
        rows.append({**dict.fromkeys(rows[0], ""), "step": "20 ms", "mode": f"{PEER}: {reason}"})
    costs = {(one["case"]["name"], one["case"]["mode"]): overhead(one) for one in outcomes}
    alone, at_20, at_200 = costs["20 ms", MEASURING], costs["20 ms", STREAMING], costs["200 ms", STREAMING]
    theirs = costs.get(("20 ms", PEER))
    return Result(
        rows=rows,
        targets={
            "overhead_at_20_ms_measuring": Target(
                str(alone), "< 1 % with its interval", alone.high < MOST_AT_20_MS
            ),
            "overhead_at_20_ms_with_everything": Target(
                str(at_20), "< 1 % with its interval", at_20.high < MOST_AT_20_MS
            ),
            "overhead_at_200_ms_with_everything": Target(
                str(at_200), "interval spans 0 or ends below 0.5 %", at_200.low <= 0 or at_200.high < MOST_AT_200_MS
            ),
            "overhead_at_20_ms_of_traceml_ai": Target(
                reason if theirs is None else str(theirs),
                "more than ours",
                theirs is not None and at_20.value < theirs.value,
            ),
        },
    )


def overhead(outcome: Outcome) -> Overhead:
    """Return what the case's mode costs beside "off", from ratios within rounds."""
    mine, off = _blocks(outcome, CLOCK)
    return _estimate([ratio - 1 for ratio in quotients(mine, off)])


def cpu(outcome: Outcome) -> Overhead:
    """Return what the training thread works more than under "off", as a share of the step."""
    mine, off = _blocks(outcome, CPU)
    block_seconds = middle(_blocks(outcome, CLOCK)[1])
    return _estimate([(one - other) / block_seconds for one, other in zip(mine, off, strict=True)])


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the median, by resampling; the same for the same values."""
    chance = random.Random(0)
    medians = sorted(middle(chance.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    return medians[int(0.025 * NUM_RESAMPLES)], medians[int(0.975 * NUM_RESAMPLES) - 1]


def _estimate(shares: Sequence[float]) -> Overhead:
    return Overhead(middle(shares), *interval(shares))


def _blocks(outcome: Outcome, which: int) -> tuple[list[float], list[float]]:
    rounds = outcome["rounds"]
    mine, off = ([block[which] for block in rounds[name]] for name in (outcome["case"]["mode"], OFF))
    return mine, off


def _rows(outcome: Outcome) -> Iterator[Row]:
    case, figure = outcome["case"], outcome.get("own_figure")
    for name, blocks in outcome["rounds"].items():
        is_off = name == OFF
        yield {
            "step": case["name"],
            "mode": name,
            "real step ms": 1000 * middle([block[CLOCK] for block in blocks]) / case["steps_per_block"],
            "overhead": "" if is_off else str(overhead(outcome)),
            "CPU of training": "" if is_off else str(cpu(outcome)),
            "CPU of threads": "" if is_off else f"{outcome['threads']:.2%}",
            "own figure": f"{figure:.2%}" if not is_off and figure is not None else "",
            "rounds": len(blocks),
        }


def _run_ours(folder: Path, cases: Sequence[Case]) -> list[Outcome]:
    with Server(folder) as server:
        outcomes = _ranks(
            {
                "cases": [asdict(case) for case in cases],
                "folder": str(folder / "spool"),
                "server": server.url,
                "token": server.ingest_token,
            }
        )
        for outcome in outcomes:
            if outcome["case"]["mode"] == STREAMING:
                if not outcome["num_delivered"]:
                    raise RuntimeError(f"the server has no window of {outcome['case']['name']}")
                outcome["own_figure"] = server.run(outcome["run"])["trust"]["agent_cost"]["value"]
    return outcomes


def _run_peer(folder: Path, cases: Sequence[Case]) -> list[Outcome]:
    place = _install()
    environment = {
        "TRACEML_UI_MODE": "summary",
        "TRACEML_LOGS_DIR": str(folder / "peer"),
        "TRACEML_SESSION_ID": "bench",
        "TRACEML_AGGREGATOR_PORT": str(_free_port()),
        "TRACEML_EXPECTED_WORLD_SIZE": "2",
    }
    with _aggregator(place, environment):
        options = {"cases": [asdict(case) for case in cases], "folder": str(folder), "peer": str(place)}
        return _ranks(options, environment)


def _install() -> Path:
    """Install the peer by name, unless an earlier run has, and return where it is."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    place = cache / "gradwire-bench" / PEER
    if not (place / "traceml_ai").is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place), PEER]
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode:
            raise RuntimeError(f"{PEER} could not be installed: {done.stderr}")
    return place


@contextmanager
def _aggregator(place: Path, environment: dict[str, str]) -> Iterator[None]:
    """Hold the process that the peer's ranks report to."""
    script = place / "traceml_ai" / "aggregator" / "aggregator_main.py"
    process = subprocess.Popen(
        [sys.executable, str(script)],
        env={**os.environ, **environment, "PYTHONPATH": str(place)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(START_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _ranks(options: dict[str, Any], environment: dict[str, str] | None = None) -> list[Outcome]:
    """Run `bench.overhead_rank` on two ranks and return what rank 0 says."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = subprocess.Popen(
        [*command, "-m", "bench.overhead_rank", json.dumps(options)],
        cwd=ROOT,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise RuntimeError(f"the ranks ended with exit code {process.returncode}:\n{errors[-4000:]}")
    outcomes: list[Outcome] = json.loads(lines[-1])["cases"]
    return outcomes


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main("overhead", measure))
