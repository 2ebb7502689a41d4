"""A training whose server is killed and started again: every window arrives once, none is missing.

    python -m bench.soak --seconds 180 --kills 5

Eight ranks, as two nodes of four, train on this machine. The server gets SIGKILL at random moments and comes back
after one to five seconds, on the same address and data. In the end its database must hold every step of every rank
once, every loss under its step, and every rank's end; and nothing may be left in the spool.
"""

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from gradwire.transport import place
from gradwire_protocol import routes

from bench.ranks import ROOT
from bench.runner import Result, Target, parser, report

RANKS, RANKS_PER_NODE = 8, 4
STEP_SECONDS = 0.05
START_SECONDS, END_SECONDS = 60.0, 120.0


class Server:
    """`gradwire-server serve` on SQLite, which can be killed and come back."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.facts: dict[str, str] = {}
        self.start()

    def start(self) -> None:
        """Start and wait until it listens; the address stays."""
        ready = self._folder / "ready.json"
        ready.unlink(missing_ok=True)
        port = self.facts["url"].rpartition(":")[2] if self.facts else "0"
        command = [sys.executable, "-m", "gradwire_server", "serve", "--port", port]
        command += ["--data", str(self._folder / "data"), "--ready-file", str(ready)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_SECONDS
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start:\n{(self._folder / 'server.log').read_text()}")
            time.sleep(0.05)
        # The tokens are those of the first start.
        self.facts = {**json.loads(ready.read_text()), **self.facts}

    def kill(self) -> None:
        """End it as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def ask(self, path: str, **query: Any) -> Any:
        """Return what it answers to its operator."""
        headers = {"Authorization": f"Bearer {self.facts['operator_token']}"}
        answer = httpx.get(self.facts["url"] + path, params=query, headers=headers, timeout=60.0, trust_env=False)
        answer.raise_for_status()
        return answer.json()


@contextlib.contextmanager
def _training(server: Server, folder: Path, seconds: float) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start the ranks; none is left when the context ends."""
    options = {
        "store": str(folder / "store"),
        "spool": str(folder / "s"),
        "server": server.facts["url"],
        "token": server.facts["ingest_token"],
        "seconds": seconds,
        "step_seconds": STEP_SECONDS,
    }
    ranks = []
    for rank in range(RANKS):
        place_of_rank = {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "GROUP_RANK": str(rank // RANKS_PER_NODE),
            "LOCAL_WORLD_SIZE": str(RANKS_PER_NODE),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
        }
        command = [sys.executable, "-m", "bench.soak_rank", json.dumps(options)]
        ranks.append(
            subprocess.Popen(command, cwd=ROOT, env={**os.environ, **place_of_rank}, stdout=subprocess.PIPE)
        )
    try:
        yield ranks
    finally:
        for process in ranks:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def _kill_and_restart(server: Server, ranks: list[subprocess.Popen[bytes]], seconds: float, kills: int) -> float:
    """Kill the server `kills` times within `seconds` and return how long it was away."""
    chance, away = random.Random(0), 0.0
    moments = sorted(chance.uniform(0.1, 0.9) * seconds for _ in range(kills))
    began = time.monotonic()
    for moment in moments:
        time.sleep(max(0.0, began + moment - time.monotonic()))
        if any(process.poll() is not None for process in ranks):
            raise RuntimeError("a rank ended before its time")
        killed = time.monotonic()
        server.kill()
        time.sleep(chance.uniform(1.0, 5.0))
        server.start()
        away += time.monotonic() - killed
    return away


def _end(ranks: list[subprocess.Popen[bytes]]) -> list[dict[str, Any]]:
    told = []
    for rank, process in enumerate(ranks):
        said, _ = process.communicate(timeout=END_SECONDS)
        if process.returncode != 0:
            raise RuntimeError(f"rank {rank} ended with exit code {process.returncode}")
        told.append(json.loads(said))
    return told


def _await_run(server: Server, run: str) -> dict[str, Any]:
    """Return the run once its end has arrived."""
    deadline = time.monotonic() + END_SECONDS
    while (view := server.ask(routes.RUN.format(run=run)))["summary"]["status"]["name"] == "running":
        if time.monotonic() > deadline:
            raise RuntimeError("the end of the run did not arrive")
        time.sleep(0.2)
    found: dict[str, Any] = view
    return found


def _steps(server: Server, run: str, last_step: int) -> tuple[list[int], list[int], list[int]]:
    """Return the steps whose loss is missing, comes twice or is another step's."""
    missing, doubled, wrong = [], [], []
    for first in range(1, last_step + 1, 1000):
        last = min(first + 999, last_step)
        query = {"name": "loss", "first_step": first, "last_step": last, "max_buckets": 1000}
        found = server.ask(routes.SERIES.format(run=run), **query)["points"]
        points = {point["first_step"]: point for point in found}
        for step in range(first, last + 1):
            point = points.get(step)
            if point is None or point["count"] < RANKS // RANKS_PER_NODE:
                missing.append(step)
            elif point["count"] > RANKS // RANKS_PER_NODE:
                doubled.append(step)
            elif (point["min"], point["max"]) != (step, step):
                wrong.append(step)
    return missing, doubled, wrong


def soak(seconds: float, kills: int) -> Result:
    """Train for `seconds` with `kills` crashes of the server and return what the server holds.

    Raises:
        RuntimeError: A rank or the server failed.
    """
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        folder = Path(name)
        server = Server(folder)
        try:
            with _training(server, folder, seconds) as ranks:
                away = _kill_and_restart(server, ranks, seconds, kills)
                told = _end(ranks)
            left = len(place.find_streams(folder / "s"))
            return _judge(server, told, kills, away, left)
        finally:
            server.kill()


def _judge(server: Server, told: list[dict[str, Any]], kills: int, away: float, left: int) -> Result:
    run, num_steps = told[0]["run"], told[0]["steps"]
    view = _await_run(server, run)
    missing, doubled, wrong = _steps(server, run, num_steps)
    sums = server.ask(routes.SERIES.format(run=run), max_buckets=5000)["steps"]
    num_rank_steps = sum(one["num_rank_steps"] for one in sums)
    lost = left + sum(sum(one["left"]) for one in told)
    row = {
        "ranks": RANKS,
        "kills": kills,
        "server away s": away,
        "steps": num_steps,
        "steps of ranks": num_rank_steps,
        "losses": num_steps - len(missing),
        "status": view["summary"]["status"]["name"],
    }
    wanted = num_steps * RANKS
    return Result(
        rows=[row],
        targets={
            "steps_of_ranks_in_windows": Target(num_rank_steps, f"{wanted}, each once", num_rank_steps == wanted),
            "losses_missing": Target(len(missing), "0", not missing),
            "losses_doubled": Target(len(doubled), "0", not doubled),
            "losses_at_a_wrong_step": Target(len(wrong), "0", not wrong),
            "measurements_dropped_or_left": Target(lost, "0", lost == 0),
            "run_finished": Target(row["status"], "finished", row["status"] == "finished"),
        },
    )


def main() -> int:
    options = _parser().parse_args()
    seconds, kills = (20.0, 2) if options.quick else (options.seconds, options.kills)
    return report("soak", soak(seconds, kills), options.json)


def _parser() -> argparse.ArgumentParser:
    made = parser("soak")
    made.add_argument("--seconds", type=float, default=180.0, help="how long to train; default: %(default)g")
    made.add_argument("--kills", type=int, default=5, help="crashes of the server; default: %(default)d")
    return made


if __name__ == "__main__":
    sys.exit(main())
