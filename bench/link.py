"""Training steps over shaped links: ours, plain DDP, PyTorch's own hooks, and the physical limit.

Every rank is a process in a network namespace of its own behind a link shaped by `tbf`. All modes live in the same
processes and take turns, block by block, so that they meet the same machine; a step is forward, backward, clipping,
optimizer and zero_grad of a byte transformer, and counts as long as its slowest rank takes. "compute only" is that
step without any averaging, the limit of what compression can reach; "hook alone" averages nothing either but runs a
communication hook that exchanges 4 KiB, the limit of what a hook can reach. Where ranks share hosts, a codec alone
means exact averages inside hosts and the codec between them, "hybrid" the same with bfloat16 inside, "flat" the
codec between all ranks. Codecs are used in every bucket, but for "int8 by choice", which is int8 in those that
should be faster for it by what is measured at the start. Bytes are counted by the network device.

    share of limit = compute only / step        x plain = plain DDP / step
    gap closed = (plain DDP - step) / (plain DDP - compute only)

Figures are medians over rounds, ratios are taken within a round, and ± is half the distance between the quartiles.
Before the timing every codec of ours must conserve the mean, and after it all ranks must hold equal parameters and
have sent the bytes that they say they sent.

One machine plays all ranks: with more ranks than cores the computation takes longer than it would on hosts of their
own, and communication seems cheaper beside it.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gradwire_compression import Plan

from bench import ranks, runner
from bench.modes import CHOICE, COMPUTE_ONLY, HOOK_ALONE, PLAIN, THIN, TORCH, our_plans
from bench.numbers import half_spread, middle, quotients
from bench.ranks import Cluster
from bench.runner import Result, Row, Target

MBIT = 1_000_000 // 8
# The links between hosts, and of each rank where it has a host of its own.
LINKS = {"1 Gbit/s": 1000 * MBIT, "200 Mbit/s": 200 * MBIT, "10 Gbit/s": 10_000 * MBIT, "unshaped": 0}

# Two hosts of two ranks, whose link is ten times slower than what their ranks have among themselves.
TOPOLOGY = "2x2"
OUTER, INNER = "50 Mbit/s", "500 Mbit/s"
# What is compared there: each codec between all ranks, and between hosts only, float32 and bfloat16 inside.
CROSSING = ("bf16", "int8", "int4", "onebit")

LIMIT_SECONDS = 1800.0

# What the device counts beside the payloads: headers and acknowledgements.
MOST_OVERHEAD = 1.2
OVERHEAD_BYTES = 100_000


@dataclass(frozen=True)
class Model:
    """A byte transformer, and batches of which one core computes a step in some 0.2 s (6M) or 0.5 s (25M)."""

    width: int
    num_blocks: int
    batch_size: int
    length: int = 64


MODELS = {"6M": Model(256, 7, 8), "25M": Model(512, 8, 4)}


@dataclass(frozen=True)
class Effort:
    """How long a setting is measured."""

    steps_per_block: int
    least_rounds: int
    # From the start of its processes; another round begins if it should end by then.
    seconds: float
    # Modes to run, all of them if empty.
    only: tuple[str, ...] = ()


FULL = Effort(steps_per_block=3, least_rounds=3, seconds=60.0)
BOUNDS = (COMPUTE_ONLY, PLAIN)
# What can be our best or the best of PyTorch's, and what a target names.
QUICK = Effort(2, 1, 15.0, (*BOUNDS, HOOK_ALONE, f"{TORCH}fp16", f"{TORCH}powersgd rank 1", "int8", "onebit", THIN))
# Where ranks share hosts, and the cores of one machine, and plain DDP would take most of the time; and where there
# is nothing to gain.
QUICK_CROSSING = Effort(1, 1, 25.0, (COMPUTE_ONLY, "int8", "int8 flat", "int8 hybrid"))
QUICK_UNSHAPED = Effort(3, 3, 14.0, (*BOUNDS, CHOICE))


@dataclass(frozen=True)
class Setting:
    """One cluster and one model."""

    cluster: Cluster
    link: str
    model: str

    @property
    def has_inner_links(self) -> bool:
        """Whether ranks share hosts, so that an average in two levels can be compared with a flat one."""
        return self.cluster.ranks_per_host > 1

    @property
    def name(self) -> str:
        """The setting in a few words, e.g. "2 ranks, 6M, 1 Gbit/s"."""
        cluster = self.cluster
        count = f"{cluster.world_size} ranks"
        if self.has_inner_links:
            count = f"{cluster.num_hosts} x {cluster.ranks_per_host} ranks"
        return f"{count}, {self.model}, {self.link}"


@dataclass(frozen=True)
class Measured:
    """A setting with the rounds of each mode, as `bench.link_rank` prints them."""

    setting: Setting
    modes: dict[str, list[dict[str, Any]]]

    def seconds(self, mode: str) -> list[float]:
        """Return the step time of each round."""
        return [middle(one["step_seconds"]) for one in self.modes[mode]]

    def speedups(self, mode: str) -> list[float]:
        """Return plain DDP's time over the mode's, round by round; empty if plain DDP was not run."""
        return [] if PLAIN not in self.modes else quotients(self.seconds(PLAIN), self.seconds(mode))

    def gaps(self, mode: str) -> list[float]:
        """Return the share of the gap between plain DDP and the limit that the mode closes, as `speedups`."""
        if PLAIN not in self.modes:
            return []
        rounds = zip(self.seconds(PLAIN), self.seconds(mode), self.seconds(COMPUTE_ONLY), strict=True)
        return [(plain - ours) / (plain - limit) for plain, ours, limit in rounds]

    def leads_of_two_levels(self, codec: str) -> list[float]:
        """Return the flat exchange's time over that of the faster one in two levels, round by round."""
        return quotients(self.seconds(flat(codec)), self.seconds(self.best([codec, hybrid(codec)])))

    def ours(self) -> list[str]:
        """Return our lossy modes."""
        return [
            name for name, blocks in self.modes.items() if blocks[0]["told_bytes"] is not None and name != "none"
        ]

    def best(self, names: Sequence[str]) -> str:
        """Return the mode with the shortest step."""
        return min(names, key=lambda name: middle(self.seconds(name)))

    def theirs(self) -> list[str]:
        """Return the modes of PyTorch's hooks."""
        return [name for name in self.modes if name.startswith(TORCH)]


def settings_of(quick: bool, only: str, topology: str = "") -> list[Setting]:
    """Return what to run; `only` is a part of a setting's name, `topology` runs what has inner links alone."""
    crossing = Setting(
        Cluster(2, 50 * MBIT, ranks_per_host=2, inner_link=500 * MBIT),
        f"{OUTER} between hosts, {INNER} inside",
        "6M",
    )
    if topology:
        return [crossing]
    if quick:
        wanted = [(2, "6M", link) for link in ("1 Gbit/s", "200 Mbit/s", "unshaped")]
    else:
        # Four ranks on few cores take seconds to compute a step of the large model, and tell nothing of links.
        wanted = [(count, model, link) for count, model in ((2, "6M"), (2, "25M"), (4, "6M")) for link in LINKS]
    made = [Setting(Cluster(count, LINKS[link]), link, model) for count, model, link in wanted]
    if not quick:
        made.append(crossing)
    return [setting for setting in made if only in setting.name]


def effort_of(setting: Setting, quick: bool) -> Effort:
    """Return how long a setting is measured."""
    if not quick:
        return FULL
    if setting.has_inner_links:
        return QUICK_CROSSING
    return QUICK if setting.cluster.link else QUICK_UNSHAPED


def measure(settings: Sequence[Setting], quick: bool) -> Result:
    """Run the settings one after the other.

    Raises:
        RuntimeError: The machine allows no network namespaces, a check failed, or a rank did.
    """
    measured = [run(setting, effort_of(setting, quick)) for setting in settings]
    return Result(
        rows=[row for one in measured for row in rows_of(one)],
        targets={name: target for one in measured for name, target in targets_of(one).items()},
    )


def flat(codec: str) -> str:
    """Return the name of the mode in which a codec is used between all ranks."""
    return f"{codec} flat"


def hybrid(codec: str) -> str:
    """Return the name of the mode in which a codec is used between hosts, and bfloat16 inside."""
    return f"{codec} hybrid"


def crossing_plans() -> dict[str, dict[str, Any]]:
    """Return the plans that are compared where ranks share hosts."""
    plans: dict[str, dict[str, Any]] = {}
    for codec in CROSSING:
        plans[flat(codec)] = Plan(codec=codec, exchange="flat", every_bucket=True).to_dict()
        plans[codec] = Plan(codec=codec, every_bucket=True).to_dict()
        plans[hybrid(codec)] = Plan(codec=codec, exchange="hybrid", every_bucket=True).to_dict()
    return plans


def run(setting: Setting, effort: Effort) -> Measured:
    """Run one setting and check the bytes."""
    options = {
        **asdict(MODELS[setting.model]),
        "plans": crossing_plans() if setting.has_inner_links else our_plans(),
        "only": effort.only,
        "steps_per_block": effort.steps_per_block,
        "least_rounds": effort.least_rounds,
        "deadline": time.time() + effort.seconds,
    }
    print(f"{setting.name} ...", file=sys.stderr, flush=True)
    measured = Measured(setting, ranks.run(setting.cluster, "bench.link_rank", options, LIMIT_SECONDS))
    check_bytes(measured)
    return measured


def check_bytes(measured: Measured) -> None:
    """Compare what the ranks say they sent with what the network devices counted.

    Raises:
        RuntimeError: Names the mode where they differ.
    """
    if measured.setting.has_inner_links:
        # Only a part of what a rank sends leaves its host.
        return
    for name in measured.modes:
        for one in measured.modes[name]:
            told, sent = one["told_bytes"], one["sent_bytes"]
            if told is not None and not 0.99 * told <= sent <= MOST_OVERHEAD * told + OVERHEAD_BYTES:
                raise RuntimeError(
                    f"{name}: a rank says it sent {told:.0f} bytes in a step, and {sent:.0f} were sent"
                )


def rows_of(measured: Measured) -> list[Row]:
    """Return a row for each mode."""
    limit = measured.seconds(COMPUTE_ONLY)
    rows = []
    for name, blocks in measured.modes.items():
        seconds, speedups, gaps = measured.seconds(name), measured.speedups(name), measured.gaps(name)
        codec = [one["codec_seconds"] for one in blocks if one["codec_seconds"] is not None]
        rows.append(
            {
                "setting": measured.setting.name,
                "mode": name,
                "step ms": 1000 * middle(seconds),
                "± ms": 1000 * half_spread(seconds),
                "share of limit": middle(quotients(limit, seconds)),
                "x plain": middle(speedups) if speedups else "",
                "±": half_spread(speedups) if speedups else "",
                "wire MB": middle([one["sent_bytes"] for one in blocks]) / 1e6,
                "codec ms": 1000 * middle(codec) if codec else "",
                "gap closed": middle(gaps) if gaps else "",
                "rounds": len(blocks),
            }
        )
    return rows


def targets_of(measured: Measured) -> dict[str, Target]:
    """Judge what is promised of two ranks and the small model."""
    setting = measured.setting
    if (setting.cluster, setting.model) == (Cluster(2, LINKS["1 Gbit/s"]), "6M"):
        return _gap(measured, "1_gbit", 0.85) | _lead(measured, "1_gbit", 1.15) | _int8_gap(measured)
    if (setting.cluster, setting.model) == (Cluster(2, LINKS["200 Mbit/s"]), "6M"):
        return _gap(measured, "200_mbit", 0.88) | _lead(measured, "200_mbit", 1.0) | _speedup(measured)
    if (setting.cluster, setting.model) == (Cluster(2, LINKS["unshaped"]), "6M"):
        return _choice(measured)
    if setting.has_inner_links:
        return _two_levels(measured)
    return {}


def _choice(measured: Measured) -> dict[str, Target]:
    value = middle(quotients(measured.seconds(CHOICE), measured.seconds(PLAIN)))
    return {"own_choice_over_plain_ddp_unshaped": Target(round(value, 3), "<= 1.03", value <= 1.03)}


def _two_levels(measured: Measured) -> dict[str, Target]:
    value = middle(measured.leads_of_two_levels("int8"))
    return {"lead_of_two_levels_over_flat_int8_at_2x2": _at_least(value, 1.5)}


def _gap(measured: Measured, link: str, want: float) -> dict[str, Target]:
    value = middle(measured.gaps(measured.best(measured.ours())))
    return {f"gap_closed_by_best_lossy_codec_at_{link}": _at_least(value, want)}


def _int8_gap(measured: Measured) -> dict[str, Target]:
    return {"gap_closed_by_int8_at_1_gbit": _at_least(middle(measured.gaps("int8")), 0.5)}


def _speedup(measured: Measured) -> dict[str, Target]:
    value = middle(measured.speedups(measured.best(measured.ours())))
    return {"speedup_of_best_lossy_codec_at_200_mbit": _at_least(value, 3.5)}


def _lead(measured: Measured, link: str, want: float) -> dict[str, Target]:
    ours, theirs = measured.best(measured.ours()), measured.best(measured.theirs())
    value, limit = (
        middle(quotients(measured.seconds(theirs), measured.seconds(mode))) for mode in (ours, HOOK_ALONE)
    )
    wanted = f">= {want}; a hook that averages nothing would have {limit:.2f}"
    return {f"lead_over_best_torch_hook_at_{link}": Target(round(value, 3), wanted, value >= want)}


def _at_least(value: float, want: float) -> Target:
    return Target(round(value, 3), f">= {want}", value >= want)


def main() -> int:
    parser = runner.parser("link")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help='e.g. "2 ranks, 6M": settings with this in their name'
    )
    parser.add_argument("--topology", choices=[TOPOLOGY], default="", help="only two hosts of two ranks each")
    options = parser.parse_args()
    settings = settings_of(options.quick, options.only, options.topology)
    if not settings:
        parser.error(f"no setting has {options.only!r} in its name")
    return runner.report("link", measure(settings, options.quick), options.json)


if __name__ == "__main__":
    sys.exit(main())
