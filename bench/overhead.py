"""What the agent costs: the same training with the agent off, measuring only, and with everything it does.

Two ranks on this machine train a small byte transformer whose steps take 20 ms or 200 ms. All modes of a comparison
live in the same processes and take turns, block by block; "measuring, pulse and stream" reports to a real server in
a process of its own on the same machine, whose work counts too. `traceml-ai` is installed by name into a folder of
its own and compared with "off" in processes of its own; its patches are taken out of torch while "off" trains, but
its threads go on, which speaks for it.

Overhead is the mode's time over that of "off", less one, within each round; the figure is the median over rounds,
with the interval of 95 % that resampling the rounds gives. "CPU" is the same of the CPU time of rank 0's process,
which other work on the machine disturbs less; where cores are idle, a part of it costs no time. "own figure" is
what the agent says of itself on the run's page. Before anything is reported all modes must have trained to the same
bits, and the server must have the windows.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.numbers import middle, quotients
from bench.overhead_rank import MEASURING, OFF, PEER, STREAMING
from bench.ranks import ROOT
from bench.runner import Result, Row, Target, main
from examples.demo.service import Server

# Milliseconds of a step: steps of a block, and rounds.
Plan = dict[str, tuple[int, int]]
FULL: Plan = {"20": (10, 50), "200": (3, 8)}
QUICK: Plan = {"20": (10, 20), "200": (2, 4)}
PEER_FULL: Plan = {"20": (10, 30)}
PEER_QUICK: Plan = {"20": (10, 12)}
LIMIT_SECONDS = 400.0
INSTALL_SECONDS = 120.0
START_SECONDS = 20.0

MOST_AT_20_MS, MOST_AT_200_MS = 0.01, 0.005
NUM_RESAMPLES = 4000

# Places in a block's times.
CLOCK, CPU = 0, 1


@dataclass(frozen=True)
class Overhead:
    """A share of the step time with its interval of 95 %."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2%} ({self.low:.2%} to {self.high:.2%})"


def measure(quick: bool) -> Result:
    """Run both comparisons.

    Raises:
        RuntimeError: A rank failed, modes trained to different bits, or the server has no windows.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, figures = _run_ours(folder, QUICK if quick else FULL)
        peer: dict[str, Any] | None = None
        try:
            peer, reason = _run_peer(folder, PEER_QUICK if quick else PEER_FULL), ""
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            reason = str(error).strip().splitlines()[-1]
    return judge(ours, figures, peer, reason)


def judge(
    ours: dict[str, Any], figures: dict[str, float | None], peer: dict[str, Any] | None, reason: str
) -> Result:
    """Return rows and targets.

    Args:
        ours: What rank 0 printed, of "off" and our modes.
        figures: The agent's own figure by step time.
        peer: The same of "off" and the peer, None if it could not be measured.
        reason: Why it could not.
    """
    rows = [row for milliseconds in ours for row in _rows(ours, milliseconds, figures.get(milliseconds))]
    if peer is None:
        rows.append({**dict.fromkeys(rows[0], ""), "step ms": "20", "mode": f"{PEER}: {reason}"})
    else:
        rows += [row for milliseconds in peer for row in _rows(peer, milliseconds, None) if row["mode"] == PEER]
    at_20, at_200 = overhead(ours["20"], STREAMING), overhead(ours["200"], STREAMING)
    theirs = overhead(peer["20"], PEER) if peer is not None else None
    alone = overhead(ours["20"], MEASURING)
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


def overhead(one: dict[str, Any], mode: str) -> Overhead:
    """Return what a mode costs beside "off", from ratios within rounds."""
    return _overhead(one, mode, CLOCK)


def _overhead(one: dict[str, Any], mode: str, which: int) -> Overhead:
    mine, off = ([block[which] for block in one["rounds"][name]] for name in (mode, OFF))
    ratios = [ratio - 1 for ratio in quotients(mine, off)]
    return Overhead(middle(ratios), *interval(ratios))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the interval of 95 % of the median, by resampling; the same for the same values."""
    chance = random.Random(0)
    medians = sorted(middle(chance.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    return medians[int(0.025 * NUM_RESAMPLES)], medians[int(0.975 * NUM_RESAMPLES) - 1]


def _rows(outcome: dict[str, Any], milliseconds: str, figure: float | None) -> Iterator[Row]:
    one = outcome[milliseconds]
    for mode in one["rounds"]:
        cost, cpu = (_overhead(one, mode, which) for which in (CLOCK, CPU))
        yield {
            "step ms": milliseconds,
            "mode": mode,
            "real step ms": 1000 * middle([block[CLOCK] for block in one["rounds"][mode]]) / one["num_steps"],
            "overhead": "" if mode == OFF else str(cost),
            "CPU": "" if mode == OFF else str(cpu),
            "own figure": f"{figure:.2%}" if mode == STREAMING and figure is not None else "",
            "rounds": len(one["rounds"][mode]),
        }


def _run_ours(folder: Path, steps: Plan) -> tuple[dict[str, Any], dict[str, float | None]]:
    with Server(folder) as server:
        outcome = _ranks(
            {
                "modes": [OFF, MEASURING, STREAMING],
                "steps": steps,
                "folder": str(folder / "spool"),
                "server": server.url,
                "token": server.ingest_token,
            }
        )
        for milliseconds, one in outcome.items():
            if not one["num_delivered"]:
                raise RuntimeError(f"the server has no window of the steps of {milliseconds} ms")
        figures = {name: server.run(one["run"])["trust"]["agent_cost"]["value"] for name, one in outcome.items()}
    return outcome, figures


def _run_peer(folder: Path, steps: Plan) -> dict[str, Any]:
    place = _install()
    environment = {
        "TRACEML_UI_MODE": "summary",
        "TRACEML_LOGS_DIR": str(folder / "peer"),
        "TRACEML_SESSION_ID": "bench",
        "TRACEML_AGGREGATOR_PORT": str(_free_port()),
        "TRACEML_EXPECTED_WORLD_SIZE": "2",
    }
    with _aggregator(place, environment):
        options = {"modes": [OFF, PEER], "steps": steps, "folder": str(folder), "peer": str(place)}
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


def _ranks(options: dict[str, Any], environment: dict[str, str] | None = None) -> dict[str, Any]:
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
    outcome: dict[str, Any] = json.loads(lines[-1])
    return outcome


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


if __name__ == "__main__":
    sys.exit(main("overhead", measure))
