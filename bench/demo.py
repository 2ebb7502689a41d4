"""The figures of the README: the demo's own last line, from several runs of it.

One run holds both sides, uncompressed and compressed steps, on the same machine within two minutes, so its ratio
counts; absolute times belong to the machine.
"""

import json
import subprocess
import sys
from statistics import median

from bench.runner import Result, Row, Target, main

NUM_RUNS = 3
STEPS = 120
QUICK_STEPS = 60


def measure(quick: bool) -> Result:
    """Run the demo once or three times.

    Raises:
        RuntimeError: A demo failed, or its replicas are not equal: then its speed means nothing.
    """
    runs = [run_once(QUICK_STEPS if quick else STEPS) for _ in range(1 if quick else NUM_RUNS)]
    speedup = median(run["speedup"] for run in runs)
    slack = max(run["rollback"]["requested_to_last_rank_seconds"] - 2 * run["step_seconds"]["int8"] for run in runs)
    learns = all(run["loss_last"] < run["loss_first"] for run in runs)
    return Result(
        rows=[row_of(run) for run in runs],
        targets={
            "speedup_int8_at_1_gbit": Target(speedup, "> 1.2", speedup > 1.2),
            "rollback_seconds_beyond_two_steps": Target(round(slack, 3), "< 0.5", slack < 0.5),
            "loss_falls": Target(learns, "true", learns),
        },
    )


def run_once(steps: int) -> Row:
    """Return the last line of one demo."""
    outcome = subprocess.run(
        [sys.executable, "-m", "examples.demo", "--steps", str(steps), "--exit"],
        capture_output=True,
        text=True,
        check=False,
    )
    if outcome.returncode:
        raise RuntimeError(f"the demo ended with exit code {outcome.returncode}:\n{outcome.stdout}{outcome.stderr}")
    figures: Row = json.loads(outcome.stdout.splitlines()[-1])
    if not figures["replicas_equal"]:
        raise RuntimeError(f"the ranks' parameters differ: {figures}")
    return figures


def row_of(run: Row) -> Row:
    """Return the figures of one demo as a row."""
    shares, seconds = run["exposed_transfer_share"], run["step_seconds"]
    return {
        "link": run["link"].partition(",")[0],
        "step ms none": round(seconds["none"] * 1000),
        "step ms int8": round(seconds["int8"] * 1000),
        "speedup": run["speedup"],
        "exposed none": shares["none"],
        "exposed int8": shares["int8"],
        "rollback s": run["rollback"]["requested_to_last_rank_seconds"],
        "loss first": run["loss_first"],
        "loss last": run["loss_last"],
    }


if __name__ == "__main__":
    sys.exit(main("demo", measure))
