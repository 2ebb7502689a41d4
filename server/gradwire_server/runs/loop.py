"""The loop of one step, and the ratios beside it, over the newest steps with the codec in use.

Shares divide by training time: the step without evaluation and checkpoint pauses. Compute is forward and backward;
send is exposed communication, that is transfer and waiting for slow ranks; update is the optimizer. Data loading
and other time are none of the five and make up the rest to one. The exposed codec time is split between compress
and decompress as all encoding is to all decoding.
"""

from collections.abc import Sequence
from typing import Literal

from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import LoopStage, Measure
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.verdict import reasons
from gradwire_server.verdict.measures import exposed_transfer, known_training, measure, rank_steps, training

StageName = Literal["compute", "compress", "send", "decompress", "update"]


def loop(blocks: Sequence[StepSums]) -> tuple[LoopStage, ...]:
    """Return the five stages in their order; without steps, their values are None."""
    names: tuple[StageName, ...] = ("compute", "compress", "send", "decompress", "update")
    total = merge(blocks)
    if total is None or total.training <= 0 or total.num_rank_steps == 0:
        return tuple(LoopStage(name=name, seconds=None, share=None) for name in names)
    codec = total.encode + total.decode
    encode_part = total.encode / codec if codec > 0 else 0.5
    seconds: dict[StageName, float] = {
        "compute": total.computation,
        "compress": total.exposed_codec * encode_part,
        "send": total.exposed_communication,
        "decompress": total.exposed_codec * (1 - encode_part),
        "update": total.optimizer,
    }
    largest = max(names, key=seconds.__getitem__)
    return tuple(
        LoopStage(
            name=name,
            seconds=seconds[name] / total.num_rank_steps,
            # Sums of rounded clocks can pass the step's own time by a hair.
            share=min(1.0, seconds[name] / max(total.training, sum(seconds.values()))),
            is_largest=name == largest and seconds[name] > 0,
        )
        for name in names
    )


def step_seconds(blocks: Sequence[StepSums]) -> Measure:
    """Return seconds of training for each step and rank."""
    return measure(blocks, training, rank_steps)


def communication_compute_ratio(blocks: Sequence[StepSums]) -> Measure:
    """Return communication, overlapped or not, waiting included, over forward and backward."""
    return measure(blocks, lambda block: block.communication, lambda block: block.computation)


def raw_share(blocks: Sequence[StepSums]) -> Measure:
    """Return communication, overlapped or not, as a share of training time."""
    return measure(blocks, lambda block: block.communication, training, most=1.0)


def exposed_share(blocks: Sequence[StepSums], unknown_reason: str) -> Measure:
    """Return exposed transfer as a share of training time; of those steps whose transfer is known."""
    reason = unknown_reason if blocks and unknown_reason else reasons.NO_STEPS
    return measure(blocks, exposed_transfer, known_training, most=1.0, reason=reason)


def agent_cost(blocks: Sequence[StepSums]) -> Measure:
    """Return the agent's own work as a share of training time."""
    return measure(blocks, lambda block: block.agent, training, most=1.0)


def throughput(
    blocks: Sequence[StepSums], world_size: int
) -> tuple[Measure, Literal["tokens", "samples", "steps"]]:
    """Return what all ranks together get done in a second of training: tokens, else samples, else steps."""
    total = merge(blocks)
    if total is not None and total.tokens > 0:
        # Tokens and seconds are both sums over ranks, and the ranks work at the same time.
        return measure(blocks, lambda block: block.tokens, training, scale=world_size), "tokens"
    if total is not None and total.samples > 0:
        return measure(blocks, lambda block: block.samples, training, scale=world_size), "samples"
    return measure(blocks, rank_steps, training), "steps"


def wire_bytes_per_second(blocks: Sequence[StepSums]) -> Measure:
    """Return what one rank sends in a second of moving bytes; known waiting for slow ranks moves none.

    Where the bytes are not known, as with a communication hook of the script's own, none are counted.
    """
    return measure(
        [block for block in blocks if block.wire_bytes],
        lambda block: block.wire_bytes,
        lambda block: max(0.0, block.communication - block.straggler_wait),
        reason=reasons.NO_BYTES,
    )


def bandwidth_use(speed: Measure, source: RunSource) -> Measure:
    """Return a rank's speed on the wire as a share of its nominal link."""
    nominal = source.facts.link.nominal_bytes_per_second
    if not nominal:
        return Measure(reason=reasons.NO_LINK)
    if speed.value is None:
        return speed
    return Measure(
        value=speed.value / nominal,
        low=None if speed.low is None else speed.low / nominal,
        high=None if speed.high is None else speed.high / nominal,
    )
