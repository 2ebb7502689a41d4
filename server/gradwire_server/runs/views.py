"""What a page or the API shows of a run: one value, built by `runs.reading`, rendered by `pages` and by JSON.

Ratios are 0 to 1, times are Unix seconds, durations are seconds. A `Measure` without a value carries the reason.
"""

from typing import Literal

from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import HostWindow, LinkTest, MachineFacts, Refusal, RouteFacts
from msgspec import Struct


class Measure(Struct, frozen=True, kw_only=True):
    """A measured number with its interval, or the reason why there is none."""

    value: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""


class StatusView(Struct, frozen=True, kw_only=True):
    """Status by server receipt time."""

    name: Literal["running", "silent", "lost", "finished", "failed", "interrupted"]
    since: float
    detail: str = ""


class VerdictView(Struct, frozen=True, kw_only=True):
    """Is compression worth it (uncompressed), or is it paying off (compressed)?"""

    kind: Literal[
        "worth_it",
        "not_worth_it",
        "cannot_say",
        "not_measured",
        "paying_off",
        "not_paying_off",
        "cannot_say_pays",
    ]
    # Exposed transfer share of uncompressed steps.
    share: Measure
    line: float = 0.20
    first_step: int | None = None
    last_step: int | None = None
    num_steps: int = 0
    # Measured speed of the codec in use relative to uncompressed; of `paying_off` and its siblings.
    codec: str = ""
    speedup: Measure = Measure()
    num_uncompressed_steps: int = 0
    # Check windows that the speed was measured in; 0 where it was by steps before the switch.
    num_checks: int = 0
    # Speed-up to expect of `suggested_codec`, from the share and the wire ratio; of `worth_it`.
    suggested_codec: str = "int8"
    expected_speedup: float | None = None
    # What encoding and decoding cost, as a share of the uncompressed step; reason "assumed" until it is measured.
    codec_cost: Measure = Measure()
    # Remaining seconds with and without the suggestion, where the total is known.
    remaining_seconds: float | None = None
    remaining_seconds_expected: float | None = None
    # More uncompressed steps needed to decide, and how long they take; of `cannot_say`.
    more_steps: int | None = None
    more_seconds: float | None = None
    # Largest part that compression cannot shorten: "data_wait", "forward", "backward", "optimizer",
    # "straggler_wait", "other".
    largest_other: str = ""
    largest_other_share: float | None = None
    # One of `verdict.reasons`, or of `not_measured` the agent's own words.
    reason: str = ""


class LoopStage(Struct, frozen=True, kw_only=True):
    """One part of the step: mean seconds per step and share of it."""

    name: Literal["compute", "compress", "send", "decompress", "update"]
    seconds: float | None
    share: float | None
    is_largest: bool = False


class DirectiveView(Struct, frozen=True, kw_only=True):
    """The newest change of the run's model and how far it is."""

    revision: int
    kind: Literal["set", "rollback"]
    codec: str
    author: str
    reason: str
    state: Literal["requested", "delivered", "applied", "rejected", "superseded", "expired"]
    requested_at: float
    answered_at: float | None = None
    seconds: float | None = None
    step: int | None = None
    num_ranks_confirmed: int = 0
    num_ranks: int = 0
    refusals: tuple[Refusal, ...] = ()
    # "directive", "local" or "guard"; a local or guard rollback has no author of its own.
    cause: str = "directive"


class QualityView(Struct, frozen=True, kw_only=True):
    """Quality against the chosen baseline run, three-valued."""

    state: Literal["within_limit", "breach", "cannot_tell", "no_evidence"]
    # "no_baseline", "too_few_checks", "no_common_steps"; "nonfinite" of a breach by NaN or infinity; "" otherwise
    reason: str = ""
    metric: str = ""
    baseline_id: str = ""
    baseline_name: str = ""
    # Positive means worse than the baseline, relative.
    drift: Measure = Measure()
    limit: float = 0.005
    floor: float | None = None
    num_checks: int = 0
    last_step: int | None = None


class SavingView(Struct, frozen=True, kw_only=True):
    """GPU-hours (process-hours on CPU): measured so far, to come, and what could be had."""

    saved_hours: Measure = Measure()
    # Check windows that it rests on; 0 where it rests on steps before the switch.
    num_checks: int = 0
    will_save_hours: Measure = Measure()
    could_save_hours: Measure = Measure()


class TrustView(Struct, frozen=True, kw_only=True):
    """How far the numbers can be trusted."""

    age_seconds: float | None
    num_nodes_reporting: int
    num_nodes: int
    # The agent's own work as a share of the step.
    agent_cost: Measure
    num_dropped: int = 0
    # The first parameter of which the ranks hold different values, empty while all are equal.
    differing_parameter: str = ""
    notes: tuple[str, ...] = ()


class StragglerView(Struct, frozen=True, kw_only=True):
    """The one rank that all others wait for."""

    rank: int
    host: str
    # What the others wait, as a share of their step; the median over them.
    others_wait_share: float


class WaitingView(Struct, frozen=True, kw_only=True):
    """Waiting for slow ranks, which compression cannot shorten."""

    # Of training time, over the newest steps.
    share: Measure = Measure()
    straggler: StragglerView | None = None


class CodecChoice(Struct, frozen=True, kw_only=True):
    """One entry of the control panel."""

    name: str
    # None where it depends on the shapes of the model's tensors.
    bits_per_element: float | None
    parameters: tuple[dict[str, str | float | int | tuple[tuple[float, float], ...]], ...] = ()
    extra_memory_bytes: int | None = None
    # Speed relative to uncompressed steps, from the exposed transfer share and the wire ratio; None if unknown.
    expected_speedup: float | None = None
    # What encoding and decoding cost, as a share of the uncompressed step; reason "assumed" until it is measured.
    codec_cost: Measure = Measure()
    refusal: str = ""
    safe_alternative: str = ""


class NodeView(Struct, frozen=True, kw_only=True):
    """One node of the attempt: what its machine did last."""

    node: int
    host: str
    num_ranks: int
    # None before the first report, and of agents that send none.
    window: HostWindow | None = None
    # Encoding and decoding on this node as a share of all its cores, over the newest steps; on CPU.
    codec_share: Measure = Measure()


class MachinesView(Struct, frozen=True, kw_only=True):
    """What the machines are and do, and how much of the time is useful."""

    nodes: tuple[NodeView, ...] = ()
    # What the first rank's machine can do; None where the agent did not say.
    machine: MachineFacts | None = None
    versions: dict[str, str] = {}
    # The interface that gradients leave by, and what a link test found.
    interface: str = ""
    link_test: LinkTest | None = None
    # (forward + backward + optimizer) / step, over the newest steps.
    useful_share: Measure = Measure()
    # Mean over all GPUs that answer.
    driver_share: float | None = None
    # CPU seconds that encoding and decoding took in this attempt, over all ranks; on CPU.
    codec_seconds: Measure = Measure()


class MatchView(Struct, frozen=True, kw_only=True):
    """How close decoded gradients came to exact ones on the newest sample; cosines are -1 to 1."""

    step: int
    codec: str
    cosine: float
    # As a share of the exact mean's norm.
    relative_error: float
    worst_parameter: str
    worst_cosine: float


class ReplicasView(Struct, frozen=True, kw_only=True):
    """The newest comparison of the ranks' parameters, bit for bit."""

    step: int
    are_equal: bool


class RehearsalView(Struct, frozen=True, kw_only=True):
    """What a codec would make of this model's gradients, tried on one rank without sending anything."""

    codec: str
    cosine: float
    relative_error: float
    # Of all gradients that it would compress, in each step of a rank.
    encode_seconds: float
    decode_seconds: float
    num_buckets: int
    last_step: int
    # Shares of the norm that the largest 1, 5 and 25 % of the elements have.
    norm_shares: tuple[float, ...]


class SamplesView(Struct, frozen=True, kw_only=True):
    """What samples of gradients and parameters tell; None and empty before there are any."""

    # Of the codec in use.
    match: MatchView | None = None
    replicas: ReplicasView | None = None
    rehearsal: tuple[RehearsalView, ...] = ()


class EventView(Struct, frozen=True, kw_only=True):
    """One line of the history."""

    number: int
    at: float
    step: int | None
    kind: str
    level: str
    message: str
    rank: int | None = None
    data: dict[str, str | int | float | bool | None] = {}


class RunSummary(Struct, frozen=True, kw_only=True):
    """One row of the list of runs."""

    id: str
    name: str
    project: str
    created_at: float
    status: StatusView
    codec: str
    step: int
    total_steps: int | None
    world_size: int
    device: Literal["cpu", "cuda"]
    verdict: VerdictView
    quality: QualityView
    # Mean exposed transfer share of the last windows, oldest first, for the sparkline; None where unknown.
    sparkline: tuple[float | None, ...] = ()


class RunView(Struct, frozen=True, kw_only=True):
    """Everything on a run's page but the charts."""

    summary: RunSummary
    model: str
    attempt_number: int
    plan: PlanSpec
    revision: int
    epoch: int
    # Step since which the present codec is in use on all ranks.
    codec_since_step: int
    num_ranks_confirmed: int
    loop: tuple[LoopStage, ...]
    step_seconds: Measure
    # (transfer + wait, overlapped or not) / (forward + backward)
    communication_compute_ratio: Measure
    throughput: Measure
    throughput_unit: Literal["tokens", "samples", "steps"]
    # Bytes per second on the wire while communicating, and its share of the nominal link.
    wire_bytes_per_second: Measure
    bandwidth_use: Measure
    link_bytes_per_second: float | None
    link_note: str
    # (exposed + overlapped communication) / step, and exposed transfer / step, over the newest steps.
    raw_share: Measure
    exposed_share: Measure
    quality: QualityView
    saving: SavingView
    finish_at: Measure
    last_change: DirectiveView | None
    trust: TrustView
    codecs: tuple[CodecChoice, ...]
    is_steered: bool
    backend: str
    optimizer: str
    device_name: str
    machines: MachinesView = MachinesView()
    # How gradients travel now; None where the agent did not say.
    route: RouteFacts | None = None
    # Other runs that can serve as the baseline: (id, name).
    baseline_choices: tuple[tuple[str, str], ...] = ()
    num_nonfinite: int = 0
    samples: SamplesView = SamplesView()
    waiting: WaitingView = WaitingView()
    # Newest first, `last_change` among them; at most the newest 50.
    changes: tuple[DirectiveView, ...] = ()
    events: tuple[EventView, ...] = ()
