"""Records that an agent reports: what started, what was measured, what happened, what ended.

Seconds are sums over the steps and ranks of a window, so ratios are formed last and survive every aggregation.
None means unknown; `unknown_reason` then says why.
"""

from typing import Literal

from msgspec import Struct, field

from gradwire_protocol.plans import PlanSpec

Scalar = str | int | float | bool | None


class SizeFacts(Struct, frozen=True, kw_only=True):
    """One size of a collective: algbw is bytes over seconds, busbw what a link carries then, as nccl-tests say."""

    num_bytes: int
    seconds: float
    algbw_bytes_per_second: float
    busbw_bytes_per_second: float


class CollectiveFacts(Struct, frozen=True, kw_only=True):
    """What one collective reaches: seconds = alpha + bus bytes / beta."""

    # "all_reduce", "reduce_scatter", "all_gather" or "all_to_all".
    name: str
    num_ranks: int
    alpha_seconds: float
    # None where larger messages took no longer than small ones.
    beta_bytes_per_second: float | None = None
    sizes: tuple[SizeFacts, ...] = ()


class PairFacts(Struct, frozen=True, kw_only=True):
    """What one rank reaches sending to another."""

    source: int
    target: int
    source_host: str
    target_host: str
    latency_seconds: float
    bytes_per_second: float


class LinkTest(Struct, frozen=True, kw_only=True):
    """What a link test measured."""

    backend: str
    num_ranks: int
    collectives: tuple[CollectiveFacts, ...] = ()
    # Both ways of each pair; of many nodes, the slowest ones.
    pairs: tuple[PairFacts, ...] = ()


class LinkFacts(Struct, frozen=True, kw_only=True):
    """The network interface that gradients leave by."""

    interface: str = ""
    # As the operating system or the caller states it; None when nobody does.
    nominal_bytes_per_second: float | None = None
    # For example "shaped by tbf" or "unshaped loopback".
    note: str = ""
    # None where the links were not tested.
    test: LinkTest | None = None


class NodeFacts(Struct, frozen=True, kw_only=True):
    """One group of ranks that share a host."""

    host: str
    ranks: tuple[int, ...]


class MachineFacts(Struct, frozen=True, kw_only=True):
    """What the first rank's machine can do for communication and codecs."""

    num_cores: int = 0
    memory_bytes: int | None = None
    # Vector instructions of the processor, by their usual names.
    instruction_sets: tuple[str, ...] = ()
    # "c", "triton" or "torch": what encodes and decodes the model's gradients.
    kernels: str = ""
    # Whether the training device computes with 8-bit floats; None where that does not matter, on a CPU.
    has_fp8: bool | None = None
    rdma_devices: tuple[str, ...] = ()
    # Of NCCL; gloo has none of its own.
    backend_version: str = ""


class GpuFacts(Struct, frozen=True, kw_only=True):
    """What one GPU of a node says through the driver; None where it does not answer, or not sensibly."""

    index: int
    name: str = ""
    # Share of the last second in which any kernel ran, one that waits for other GPUs too.
    utilisation_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    power_watts: float | None = None
    clock_hertz: float | None = None
    max_clock_hertz: float | None = None
    # "power_cap", "hardware_slowdown", "hardware_thermal", "power_brake", "thermal"
    throttled_by: tuple[str, ...] = ()
    num_nvlinks: int = 0
    nvlink_sent_bytes: int | None = None
    nvlink_received_bytes: int | None = None


class RouteFacts(Struct, frozen=True, kw_only=True):
    """How gradients travel with one codec, unless the plan asks for a flat exchange; for its default parameters."""

    # Why all ranks exchange with each other; empty if the exchange is exact inside nodes and compressed across.
    flat_reason: str = ""
    # What one rank sends in one step, bytes.
    wire_bytes: int
    # What leaves one node in one step, bytes; None for a flat exchange.
    node_bytes: int | None = None


class AttemptStarted(Struct, frozen=True, kw_only=True, tag="attempt_started"):
    """First record of every node's stream; all nodes state the same facts of the attempt and their own node."""

    at: float  # agent's wall clock, Unix seconds
    run_name: str
    project: str = "default"
    node: NodeFacts
    world_size: int
    backend: str
    device: Literal["cpu", "cuda"]
    device_name: str = ""
    link: LinkFacts = field(default_factory=LinkFacts)
    optimizer: str | None = None
    num_elements: int = 0
    # Bytes that one uncompressed exchange averages.
    gradient_bytes: int = 0
    plan: PlanSpec = field(default_factory=PlanSpec)
    start_step: int = 0
    total_steps: int | None = None
    total_tokens: int | None = None
    # "higher" or "lower" by metric name; loss is "lower" unless stated.
    better: dict[str, str] = field(default_factory=dict)
    codecs: tuple[str, ...] = ()
    # Extra memory per rank by codec, bytes: residuals and buffers.
    codec_memory_bytes: dict[str, int] = field(default_factory=dict)
    # Codecs that the agent would refuse, with the reason.
    refused_codecs: dict[str, str] = field(default_factory=dict)
    routes: dict[str, RouteFacts] = field(default_factory=dict)
    is_steered: bool = True
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    # None of agents that did not say.
    machine: MachineFacts | None = None


class PhaseSeconds(Struct, kw_only=True):
    """Sums over the steps and ranks of a window, seconds.

    step = data_wait + forward + backward + exposed_communication + exposed_codec + optimizer + pause + other, and
    exposed_communication = exposed_transfer + straggler_wait where the split is known.
    """

    step: float = 0.0
    data_wait: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    exposed_communication: float = 0.0
    exposed_transfer: float | None = None
    straggler_wait: float | None = None
    exposed_codec: float = 0.0
    optimizer: float = 0.0
    pause: float = 0.0
    other: float = 0.0
    # Communication that ran while backward was computing; not part of the sum above.
    overlapped: float = 0.0
    # Codec work, exposed or not.
    encode: float = 0.0
    decode: float = 0.0
    # The agent's own work: on the training thread, and the CPU time of the agent's threads.
    agent: float = 0.0


class RankSums(Struct, kw_only=True):
    """What one rank did in a window, where ranks matter."""

    rank: int
    step_seconds: float
    straggler_wait_seconds: float | None = None


class StepWindow(Struct, kw_only=True, tag="window"):
    """Sums over the steps `first_step` to `last_step` of one node; never across a switch."""

    first_step: int
    last_step: int
    num_steps: int
    # Sum over ranks of the steps each took part in; a mean per step and rank divides by it.
    num_rank_steps: int
    epoch: int
    codec: str
    # The first steps after a switch and flush steps; verdicts leave them out.
    is_settling: bool = False
    # Uncompressed for a moment while the plan of this epoch has a codec, to compare with.
    is_check: bool = False
    started_at: float = 0.0  # agent's wall clock, Unix seconds
    wall_seconds: float = 0.0
    seconds: PhaseSeconds = field(default_factory=PhaseSeconds)
    unknown_reason: str = ""
    step_seconds_min: float = 0.0
    step_seconds_max: float = 0.0
    logical_bytes: int = 0
    wire_bytes: int = 0
    samples: int = 0
    tokens: int = 0
    ranks: tuple[RankSums, ...] = ()


class HostWindow(Struct, frozen=True, kw_only=True, tag="host"):
    """What a node's machine did in the `seconds` before `at`, whoever's work it was; None where it does not say."""

    at: float  # agent's wall clock, Unix seconds
    seconds: float
    num_cores: int
    # Share of all cores' time that was spent working.
    cpu_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    # The interface that gradients leave by, and what it counted.
    interface: str = ""
    received_bytes: int | None = None
    sent_bytes: int | None = None
    # Packets lost or damaged since the attempt began.
    num_errors: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    # Values since the attempt began that no GPU can reach, left out above.
    num_invalid: int = 0


class Points(Struct, kw_only=True, tag="points"):
    """Values of one user metric at ascending steps.

    A non-finite value is None in `values` and named in `kinds` by its index: "nan", "+inf" or "-inf".
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float | None, ...]
    kinds: dict[str, Literal["nan", "+inf", "-inf"]] = field(default_factory=dict)
    is_evaluation: bool = False
    # Of values that are means over ranks, the smallest and largest finite one of a rank, None where there is none;
    # and what each mean counts beside those of other nodes, usually samples. Empty for values of no ranks.
    lows: tuple[float | None, ...] = ()
    highs: tuple[float | None, ...] = ()
    weights: tuple[float, ...] = ()


class Event(Struct, kw_only=True, tag="event"):
    """Something worth a line in the run's history."""

    at: float
    step: int
    # "nonfinite", "residual_dropped", "flushed", "fallback", "data_dropped", "unsteered", "redistributed",
    # "unfrozen", "loss_nonfinite", "replicas_differ", "replicas_agree", "spared", "traced", "would_roll_back",
    # "note"
    kind: str
    message: str
    rank: int | None = None
    level: Literal["info", "warning", "error"] = "info"
    data: dict[str, Scalar] = field(default_factory=dict)


class Refusal(Struct, frozen=True, kw_only=True):
    """Why one rank did not accept a plan."""

    rank: int
    host: str
    reason: str


class Switched(Struct, kw_only=True, tag="switched"):
    """All ranks changed to `plan` at `step`; sent by rank 0 once the vote was unanimous."""

    at: float
    step: int
    epoch: int
    plan: PlanSpec
    num_ranks: int
    # "directive": revision says which one; "local": a node's socket; "guard": the rule named in `reason`.
    cause: Literal["directive", "local", "guard"]
    revision: int | None = None
    is_rollback: bool = False
    reason: str = ""
    residual_norm_dropped: float | None = None


class Refused(Struct, kw_only=True, tag="refused"):
    """No rank changed: at least one refused the plan of `revision`."""

    at: float
    step: int
    epoch: int
    revision: int
    refusals: tuple[Refusal, ...]


class Matched(Struct, kw_only=True, tag="match"):
    """How close the decoded mean came to the exact mean of gradients and residuals, on a sample of one step."""

    step: int
    epoch: int
    codec: str
    # -1 to 1, of all sampled elements together; the error is a share of the exact mean's norm.
    cosine: float
    relative_error: float
    # The parameter with the smallest cosine.
    worst_parameter: str
    worst_cosine: float
    num_elements: int


class Rehearsed(Struct, kw_only=True, tag="rehearsal"):
    """What a codec with its defaults makes of some of one rank's gradients, tried without sending anything."""

    step: int
    codec: str
    # That the gradients are of; others have their turn later.
    bucket: int
    cosine: float
    relative_error: float
    encode_seconds: float
    decode_seconds: float
    # Of the sample, and those of the model that codecs compress.
    num_elements: int
    model_elements: int
    # Share of the gradients' norm that the largest 1, 5 and 25 % of the elements have.
    norm_shares: tuple[float, float, float]


class AttemptEnded(Struct, kw_only=True, tag="attempt_ended"):
    """Last record of a node's stream."""

    at: float
    last_step: int
    status: Literal["finished", "failed", "interrupted"]
    exception: str = ""


Result = Switched | Refused
Record = (
    AttemptStarted
    | StepWindow
    | HostWindow
    | Points
    | Event
    | Switched
    | Refused
    | Matched
    | Rehearsed
    | AttemptEnded
)
