"""Is compression worth it? Asked of uncompressed steps only, otherwise success would look like no need.

The share is exposed transfer over training time: steps without evaluation and checkpoint pauses, in which nothing
is sent. Its whole interval above the line is worth it, below it is not, across it cannot be said yet.
"""

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from gradwire_server.runs.views import Measure, VerdictView
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.verdict import reasons
from gradwire_server.verdict.formula import assumed_codec_cost, speedup, steps_to_decide
from gradwire_server.verdict.intervals import MIN_BLOCKS
from gradwire_server.verdict.measures import exposed_transfer, known_training, measure, ratio_of

# From the field: below this exposed share compression does not earn its keep.
LINE = 0.20

# More steps than this to decide means that the share lies on the line for every practical purpose.
MAX_STEPS_TO_DECIDE = 100_000


class Suggestion(Struct, frozen=True, kw_only=True):
    """The codec that the page would turn on, and what is known of it."""

    codec: str
    wire_ratio: float
    # Measured share of the uncompressed step; None where this run has not used the codec.
    codec_cost: float | None = None


def worth_it(
    blocks: Sequence[StepSums],
    *,
    world_size: int,
    suggestion: Suggestion | None = None,
    remaining_steps: int | None = None,
    unknown_reason: str = "",
    line: float = LINE,
) -> VerdictView:
    """Judge uncompressed, settled steps of one attempt.

    Args:
        blocks: The steps in blocks, oldest first; at least `MIN_BLOCKS` with known transfer are needed to judge.
        world_size: Number of ranks; a single one has nothing to gain.
        suggestion: What could be turned on; None where the agent can run no codec that helps.
        remaining_steps: Steps still to do, where the total is known.
        unknown_reason: Why the transfer of some steps is unknown.
        line: Share from which compression is worth it.
    """
    total = merge(blocks)
    if world_size == 1:
        nothing = Measure(value=0.0, low=0.0, high=0.0)
        return _about(total, VerdictView(kind="not_worth_it", share=nothing, line=line, reason=reasons.ONE_RANK))
    if total is None:
        return VerdictView(
            kind="cannot_say", share=Measure(reason=reasons.NO_STEPS), line=line, reason=reasons.NO_STEPS
        )
    if total.known_training <= 0:
        reason = unknown_reason or reasons.NO_TRANSFER
        share = Measure(reason=reason)
        return _about(total, VerdictView(kind="not_measured", share=share, line=line, reason=reason))
    verdict = _about(total, _judge(blocks, total, line))
    return _expect(verdict, total, suggestion, remaining_steps)


def _judge(blocks: Sequence[StepSums], total: StepSums, line: float) -> VerdictView:
    told = [block for block in blocks if block.known_training > 0]
    share = measure(told, exposed_transfer, known_training, most=1.0)
    estimate = ratio_of(told, exposed_transfer, known_training)
    if estimate is None or estimate.num_blocks < MIN_BLOCKS:
        more = math.ceil((MIN_BLOCKS - len(told)) * total.num_steps / len(told))
        return _undecided(share, line, reasons.TOO_FEW_STEPS, total, more)
    if estimate.low > line:
        return VerdictView(kind="worth_it", share=share, line=line)
    if estimate.high < line:
        return VerdictView(kind="not_worth_it", share=share, line=line)
    steps = steps_to_decide(total.num_steps, estimate.value, estimate.half_width, line)
    if steps is None or steps > MAX_STEPS_TO_DECIDE:
        return VerdictView(kind="cannot_say", share=share, line=line, reason=reasons.ON_LINE)
    return _undecided(share, line, reasons.ACROSS_LINE, total, steps)


def _undecided(share: Measure, line: float, reason: str, total: StepSums, more_steps: int) -> VerdictView:
    seconds = more_steps * total.step / max(1, total.num_rank_steps)
    return VerdictView(
        kind="cannot_say", share=share, line=line, reason=reason, more_steps=more_steps, more_seconds=seconds
    )


def _about(total: StepSums | None, verdict: VerdictView) -> VerdictView:
    """Add which steps were asked, and what they spend most on besides communication that can be saved."""
    if total is None:
        return verdict
    name, share = largest_other(total)
    return replace(
        verdict,
        first_step=total.first_step,
        last_step=total.last_step,
        num_steps=total.num_steps,
        largest_other=name,
        largest_other_share=share,
    )


def largest_other(total: StepSums) -> tuple[str, float | None]:
    """Return the largest part of the step that compression cannot shorten, with its share of training time."""
    if total.training <= 0:
        return "", None
    names = ("data_wait", "forward", "backward", "optimizer", "other")
    shares = {name: getattr(total, name) / total.training for name in names}
    if total.known_training > 0:
        shares["straggler_wait"] = total.straggler_wait / total.known_training
    name = max(shares, key=shares.__getitem__)
    return name, shares[name]


def _expect(
    verdict: VerdictView, total: StepSums, suggestion: Suggestion | None, remaining_steps: int | None
) -> VerdictView:
    """Add what the suggested codec should bring, and the time still to go with and without it."""
    per_step = total.step / max(1, total.num_rank_steps)
    pause = total.pause / max(1, total.num_rank_steps)
    remaining = None if remaining_steps is None else remaining_steps * per_step
    if suggestion is None or verdict.share.value is None:
        return replace(verdict, suggested_codec="", remaining_seconds=remaining)
    is_measured = suggestion.codec_cost is not None
    cost = suggestion.codec_cost if suggestion.codec_cost is not None else assumed_codec_cost(verdict.share.value)
    speed = speedup(verdict.share.value, suggestion.wire_ratio, cost)
    expected = None if remaining_steps is None else remaining_steps * (pause + (per_step - pause) / speed)
    return replace(
        verdict,
        suggested_codec=suggestion.codec,
        expected_speedup=speed,
        codec_cost=Measure(value=cost, reason="" if is_measured else reasons.ASSUMED),
        remaining_seconds=remaining,
        remaining_seconds_expected=expected,
    )
