"""How bytes and time of one average grow with the number of ranks: two phases against all-gather.

Two, three and four ranks really average one vector over links of 1 Gbit/s, each rank in a network namespace of its
own. A model predicts the same, and what 8 to 1024 ranks would see on hosts of their own. It knows what two ranks
measured of the link (bytes per second, latency), of each codec (seconds to encode, seconds to decode) and of an
average of next to nothing, and the sizes that codecs state. Bytes are counted by the network device.

`all-gather` stands for codecs that send every rank's payload to every rank: fine for two, and worse than no codec
at some number of ranks. Before the timing every scheme must conserve the mean.

Times are those of the fastest round, since whatever disturbs a round makes it longer; ± is half the distance
between the quartiles of all rounds. One machine plays all ranks: where there are more ranks than cores, the model
lets those that share one take turns.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench import model, ranks
from bench.model import ALL_GATHER, NONE, CodecCost, Link, TwoPhaseSize
from bench.numbers import half_spread, middle
from bench.ranks import Cluster
from bench.runner import Result, Row, Target, main
from bench.scaling_rank import COLUMNS, part_sizes, scaled_codecs

BYTES_PER_SECOND = 125_000_000
NUM_ROWS = 6400
REAL = (2, 3, 4)
PREDICTED = (8, 16, 32, 64, 128, 256, 512, 1024)
ROUNDS, QUICK_ROUNDS = 15, 5
LIMIT_SECONDS = 600.0
MOST_DISAGREEMENT = 0.2


@dataclass(frozen=True)
class Predictor:
    """Turns what two ranks measured into what any number of ranks should see."""

    num_rows: int
    link: Link
    # By scheme.
    codecs: dict[str, CodecCost]
    # By kind of scheme: what an average takes however little there is to average.
    fixed_seconds: dict[str, float]
    # By codec.
    payload_bytes: dict[str, int]
    num_cores: int

    @classmethod
    def of(cls, measured: dict[str, Any], num_rows: int, num_cores: int) -> "Predictor":
        """Make it from what `bench.scaling_rank` printed with two ranks."""
        schemes = measured["schemes"]
        # The latency of two steps is small beside a vector.
        speed = model.exact_bytes(4 * num_rows * COLUMNS, 2) / min(schemes[NONE]["seconds"])
        return cls(
            num_rows,
            Link(speed, measured["latency_seconds"]),
            {name: _cost(name, one) for name, one in schemes.items() if name != NONE},
            measured["fixed_seconds"],
            measured["payload_bytes"],
            num_cores,
        )

    def predict(self, scheme: str, world_size: int, is_one_machine: bool) -> tuple[float, float]:
        """Return (bytes that a rank sends, seconds)."""
        if scheme == NONE:
            num_bytes = 4 * self.num_rows * COLUMNS
            return (
                model.exact_bytes(num_bytes, world_size),
                model.exact_seconds(self.link, num_bytes, world_size),
            )
        name, kind = scheme.split(maxsplit=1)
        # Ranks that share a core take turns: slices of the scheduler are as long as what they do at a time.
        turns = -(-world_size // self.num_cores) if is_one_machine else 1
        cost, fixed = self.codecs[scheme].times(turns), self.fixed_seconds[kind] * turns
        if kind == ALL_GATHER:
            payload = self.payload_bytes[name]
            return (
                model.all_gather_bytes(payload, world_size),
                model.all_gather_seconds(self.link, cost, payload, world_size) + fixed,
            )
        size = TwoPhaseSize(**part_sizes(scaled_codecs()[name], self.num_rows, world_size))
        return (
            model.two_phase_bytes(size, world_size),
            model.two_phase_seconds(self.link, cost, size, world_size) + fixed,
        )


def _cost(scheme: str, measured: dict[str, float]) -> CodecCost:
    encode, decode = measured["encode_seconds"], measured["decode_seconds"]
    if scheme.endswith(ALL_GATHER):
        return CodecCost(encode, decode / REAL[0])
    return CodecCost.of_two_phase(encode, decode)


def measure(quick: bool) -> Result:
    """Run two, three and four ranks, and predict the rest.

    Raises:
        RuntimeError: The machine allows no network namespaces, or a scheme loses a part of the mean.
    """
    rounds = QUICK_ROUNDS if quick else ROUNDS
    options = {"num_rows": NUM_ROWS, "num_rounds": rounds}
    measured = {}
    for world_size in REAL:
        print(f"{world_size} ranks ...", file=sys.stderr, flush=True)
        cluster = Cluster(world_size, BYTES_PER_SECOND)
        measured[world_size] = ranks.run(cluster, "bench.scaling_rank", options, LIMIT_SECONDS)
    predictor = Predictor.of(measured[REAL[0]], NUM_ROWS, os.cpu_count() or 1)
    rows = rows_of(measured, predictor)
    return Result(rows=rows, targets=targets_of(rows))


def rows_of(measured: dict[int, dict[str, Any]], predictor: Predictor) -> list[Row]:
    """Return a row for each scheme and number of ranks."""
    rows = []
    for scheme in measured[REAL[0]]["schemes"]:
        for world_size in (*REAL, *PREDICTED):
            num_bytes, seconds = predictor.predict(scheme, world_size, is_one_machine=world_size in REAL)
            real = measured[world_size]["schemes"][scheme] if world_size in REAL else None
            rows.append(
                {
                    "scheme": scheme,
                    "ranks": world_size,
                    "MB": middle(real["sent_bytes"]) / 1e6 if real else "",
                    "MB predicted": num_bytes / 1e6,
                    "ms": 1000 * min(real["seconds"]) if real else "",
                    "± ms": 1000 * half_spread(real["seconds"]) if real else "",
                    "ms predicted": 1000 * seconds,
                }
            )
    return rows


def targets_of(rows: Sequence[Row]) -> dict[str, Target]:
    """Judge the largest disagreement of model and measurement."""
    return {
        "bytes_predicted_within": _disagreement(rows, "MB"),
        "time_predicted_within": _disagreement(rows, "ms"),
    }


def _disagreement(rows: Sequence[Row], column: str) -> Target:
    real = [row for row in rows if row[column] != ""]
    worst = max(abs(row[f"{column} predicted"] / row[column] - 1) for row in real)
    return Target(round(worst, 3), f"<= {MOST_DISAGREEMENT}", worst <= MOST_DISAGREEMENT)


if __name__ == "__main__":
    sys.exit(main("scaling", measure))
