"""Steps whose truth is known, and what the agent recorded of them.

Two ranks train over shaped links while known parts are put into their steps: computation in the forward and the
backward pass, a slow loader, a slow optimizer, bytes over a link of known speed, hidden and not, a rank that is
late, a codec that takes its time, pauses and other work. What sleeps or computes notes how long it really took, so
the truth holds on a busy machine too; transfer follows from bytes and link, or for a codec's short hops from the
same hops without an exchange, in a step's rhythm; waiting follows from when the ranks were ready. The measured side
is what the agent wrote into its spool, the windows of its settled steps.

Injected and measured are shares of the measured step; "off" is their difference, and the table has the rank that
is further off. Phases of which less than half a per cent was injected and measured are left out of the table, but
not of the targets.
"""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench import ranks
from bench.ranks import Cluster
from bench.runner import Result, Row, Target, main
from bench.truth_rank import PHASES, Scenario
from examples.demo import network

LINK = 50_000_000
LIMIT_SECONDS = 300.0
STEPS, QUICK_STEPS = 30, 16
# The most that a phase may be off, share of the step.
TOLERANCE = 0.05
# Sums of floating-point numbers.
ROUNDING = 1e-6

# Known only of steps in which the ranks were compared.
SPLIT = ("transfer", "wait")

MB = 1_000_000
COMPUTE = Scenario("", data_wait=0.01, forward=0.03, backward=0.05, optimizer=0.01)
SCENARIOS = (
    replace(COMPUTE, name="busy compute", is_busy=True),
    replace(COMPUTE, name="slow loader", data_wait=0.08),
    replace(COMPUTE, name="slow optimizer", optimizer=0.08),
    replace(COMPUTE, name="exposed transfer", first_bytes=2 * MB, second_bytes=2 * MB),
    replace(COMPUTE, name="hidden transfer", between=0.08, backward=0.01, first_bytes=3 * MB),
    replace(COMPUTE, name="partly hidden", between=0.03, first_bytes=4 * MB, second_bytes=MB),
    replace(COMPUTE, name="late rank", straggle=0.06),
    replace(COMPUTE, name="late rank, slow link", straggle=0.06, first_bytes=2 * MB, second_bytes=MB),
    replace(COMPUTE, name="slow codec", encode=0.01, decode=0.005, first_bytes=2 * MB, second_bytes=2 * MB),
    replace(COMPUTE, name="pauses", pause=0.06),
    replace(COMPUTE, name="other work", other=0.06),
    Scenario(
        "everything",
        data_wait=0.02,
        forward=0.02,
        backward=0.02,
        between=0.02,
        first_bytes=2 * MB,
        second_bytes=2 * MB,
        straggle=0.02,
        optimizer=0.02,
        pause=0.02,
        other=0.02,
    ),
    replace(COMPUTE, name="no pulse", is_steered=False, second_bytes=2 * MB),
)


def measure(quick: bool) -> Result:
    """Run every scenario in the same processes.

    Raises:
        RuntimeError: The machine allows no network namespaces, or a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "scenarios": [asdict(scenario) for scenario in SCENARIOS],
            "num_steps": QUICK_STEPS if quick else STEPS,
            "link": LINK,
            "burst": network.burst_of(LINK),
            "folder": folder,
        }
        outcome = ranks.run(Cluster(2, LINK), "bench.truth_rank", options, LIMIT_SECONDS)
    return judge(outcome)


def judge(outcome: dict[str, list[dict[str, Any]]]) -> Result:
    """Compare what was injected with what was measured, by scenario and rank."""
    rows = [row for name, each in outcome.items() for row in _rows(name, each)]
    told = [row for row in rows if row["off"] is not None]
    worst = max(told, key=lambda row: abs(row["off"]))
    measured = [one["measured"] for each in outcome.values() for one in each]
    most = max(one["most_of_step"] for one in measured)
    least = min(one["least_overlapped"] for one in measured)
    bare = sum(one["has_bare_unknown"] for one in measured)
    unknown = [one["measured"]["unknown_reason"] for one in outcome["no pulse"]]
    return Result(
        rows=[shown(row) for row in _worse_ranks(rows) if _is_telling(row)],
        targets={
            "worst_phase_off_share_of_step": Target(
                f"{worst['off']:+.3f} ({worst['scenario']}, rank {worst['rank']}, {worst['phase']})",
                f"within {TOLERANCE}",
                abs(worst["off"]) <= TOLERANCE,
            ),
            "phases_sum_to_at_most_the_step": Target(round(most, 6), "<= 1", most <= 1 + ROUNDING),
            "least_overlapped_seconds": Target(least, ">= 0", least >= 0),
            "unknown_without_a_reason": Target(bare, "0", bare == 0),
            "ranks_that_say_why_without_a_pulse": Target(
                sum(bool(reason) for reason in unknown), f"{len(unknown)}", all(unknown)
            ),
        },
    )


def _rows(scenario: str, each: Sequence[dict[str, Any]]) -> Iterator[Row]:
    for rank, one in enumerate(each):
        for phase in (*PHASES, "overlapped"):
            when = "_when_compared" if phase in SPLIT and one["measured_when_compared"] else ""
            injected, measured = one[f"injected{when}"], one[f"measured{when}"]
            got = None if measured[phase] is None else measured[phase] / measured["step"]
            put = injected[phase] / measured["step"]
            yield {
                "scenario": scenario,
                "rank": rank,
                "phase": phase,
                "step ms": 1000 * measured["step"] / measured["num_steps"],
                "injected": put,
                "measured": got,
                "off": None if got is None else got - put,
                "reason": measured["unknown_reason"] if got is None else "",
            }


def _worse_ranks(rows: Sequence[Row]) -> Iterator[Row]:
    """Yield of each scenario and phase the rank that is further off."""
    for row in rows:
        same = [other for other in rows if (other["scenario"], other["phase"]) == (row["scenario"], row["phase"])]
        if row is max(same, key=lambda other: abs(other["off"] or 0.0)):
            yield row


def _is_telling(row: Row) -> bool:
    return row["measured"] is None or max(row["injected"], row["measured"]) >= 0.005


def shown(row: Row) -> Row:
    """Return a row as the table shows it."""
    values = {name: "unknown" if row[name] is None else f"{row[name]:+.1%}" for name in ("measured", "off")}
    values["measured"] = values["measured"].removeprefix("+")
    return {**row, **values, "injected": f"{row['injected']:.1%}", "step ms": round(row["step ms"])}


if __name__ == "__main__":
    sys.exit(main("truth", measure))
