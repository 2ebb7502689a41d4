"""Check windows against the truth: int8 over a shaped link, and plain DDP beside it in the same processes.

Both train in turns, each its own copy of a byte transformer of a million parameters, two ranks behind links of 400
Mbit/s. The truth is the wall time of a step of plain DDP over that of a compressed step outside of windows, by a
clock around the steps; what is checked is the speed-up that the service states from the windows alone, through its
own tables and arithmetic. Windows come as often as there are steps to compare with, far more often than in a
training.
"""

import sys
from typing import Any

import msgspec
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import AttemptStarted, NodeFacts, Record, StepWindow
from gradwire_server.database.tables import metadata
from gradwire_server.ingest.store import store_batch
from gradwire_server.runs.reading import run_view
from gradwire_server.runs.views import RunView
from sqlalchemy import create_engine

from bench import ranks, runner
from bench.numbers import middle
from bench.ranks import Cluster
from bench.runner import Result, Target

LINK = 400 * 1_000_000 // 8
SECONDS, QUICK_SECONDS = 150.0, 40.0
# Of the speed-up: what a window of 18 steps and its neighbours may be off.
TOLERANCE = 0.05


def measure(quick: bool) -> Result:
    """Train, and let the service say what it makes of the windows."""
    seconds = QUICK_SECONDS if quick else SECONDS
    found = ranks.run(Cluster(num_hosts=2, link=LINK), "bench.checks_rank", {"seconds": seconds}, 4 * seconds + 60)
    plain, compressed = (middle(found["seconds"][name]) for name in ("plain", "int8"))
    verdict = stated([msgspec.convert(window, StepWindow) for window in found["windows"]]).summary.verdict
    speed = verdict.speedup
    if speed.value is None or not verdict.num_checks:
        raise RuntimeError(f"too few windows in {seconds:.0f} s for a speed-up: {speed.reason}")
    truth = plain / compressed
    rows = [
        {
            "plain DDP ms": 1000 * plain,
            "int8 ms": 1000 * compressed,
            "true speed-up": truth,
            "by windows": speed.value,
            "from": speed.low,
            "to": speed.high,
            "windows": verdict.num_checks,
        }
    ]
    off = abs(speed.value / truth - 1)
    target = Target(round(off, 4), f"<= {TOLERANCE}", off <= TOLERANCE)
    return Result(rows, {"speedup_by_check_windows_off_the_truth_by": target})


def stated(windows: list[StepWindow]) -> RunView:
    """Return what the service shows of a run that sent these windows."""
    run, attempt = new_id(), new_id()
    plan: Any = {"codec": "int8"}
    facts: Any = {"at": 0.0, "run_name": "bench", "world_size": 2, "backend": "gloo", "device": "cpu", "plan": plan}
    started = msgspec.convert({**facts, "node": NodeFacts(host="host0", ranks=(0, 1))}, AttemptStarted)
    engine = create_engine("sqlite://")
    metadata.create_all(engine)
    with engine.connect() as connection:
        records: list[Record] = [started, *windows]
        for number, record in enumerate(records, start=1):
            batch = Batch(run=run, attempt=attempt, model="model", node=0, number=number, records=(record,))
            store_batch(connection, batch, now=float(number))
        view = run_view(connection, run, float(len(windows) + 1))
    engine.dispose()
    assert view is not None
    return view


if __name__ == "__main__":
    sys.exit(runner.main("checks", measure))
