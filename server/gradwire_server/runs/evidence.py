"""The measured steps that a run's verdict, saving and loop rest on."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gradwire_protocol.codecs import CATALOGUE
from sqlalchemy import Connection

from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import VerdictView
from gradwire_server.series.checks import Check, checks
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.series.windows import Stretch, blocks, stretches
from gradwire_server.verdict.formula import wire_ratio
from gradwire_server.verdict.intervals import MAX_BLOCKS, MIN_BLOCKS
from gradwire_server.verdict.paying import MIN_CHECKS, paying_off
from gradwire_server.verdict.worth import Suggestion, worth_it

# A verdict rests on the newest steps: older ones tell of other data and another network, and cost reading time.
MAX_VERDICT_STEPS = 20_000

# "Now" is the last minute, or fifty steps where a minute has fewer.
NEWEST_SECONDS = 60.0
MIN_NEWEST_STEPS = 50

# What the page suggests first: int8 costs no quality in the field, bf16 always works.
PREFERRED_CODECS = ("int8", "bf16")


@dataclass(frozen=True)
class Evidence:
    """Stretches and blocks of the current attempt, settled steps unless named otherwise."""

    stretches: tuple[Stretch, ...]
    is_compressed: bool
    # The newest steps with the codec in use.
    newest: tuple[StepSums, ...]
    uncompressed: tuple[StepSums, ...]
    # With the codec in use, or with the last one that was.
    compressed: tuple[StepSums, ...]
    # Check windows of the codec in use, or of the last one that was, oldest first; and its epoch.
    checks: tuple[Check, ...] = ()
    checks_epoch: int = -1

    @property
    def compressed_total(self) -> StepSums | None:
        """All compressed steps, settling ones included."""
        return merge(stretch.sums for stretch in self.stretches if stretch.codec != "none")

    @property
    def unknown_reason(self) -> str:
        """Why the transfer of some steps is unknown, in the agent's words."""
        return next((stretch.unknown_reason for stretch in self.stretches if stretch.unknown_reason), "")

    @property
    def received_at(self) -> float | None:
        """When the newest window arrived, Unix seconds."""
        return max((stretch.received_at for stretch in self.stretches), default=None)


def gather(connection: Connection, source: RunSource) -> Evidence:
    """Read what is known of the current attempt. Cost: a few queries, bounded whatever the run's length."""
    known = tuple(stretches(connection, source.id, source.name, attempt=source.attempt_id))
    present = _present(known, source.model["epoch"])
    is_compressed = (present.codec if present else source.plan.codec) != "none"
    settled = [stretch for stretch in known if not stretch.is_settling and not stretch.is_check]
    exact = _best(stretch for stretch in settled if stretch.codec == "none")
    lossy = _best(
        stretch
        for stretch in settled
        if stretch.codec != "none" and (not is_compressed or (present and stretch.epoch == present.epoch))
    )

    def read(stretch: Stretch | None, num_steps: int) -> tuple[StepSums, ...]:
        if stretch is None:
            return ()
        first_step = max(stretch.sums.first_step, stretch.sums.last_step - num_steps + 1)
        return tuple(
            blocks(connection, source.id, source.name, stretch, first_step=first_step, num_blocks=MAX_BLOCKS)
        )

    uncompressed, found = read(exact, MAX_VERDICT_STEPS), checks_of(connection, source, known, lossy)
    if len(uncompressed) < MIN_BLOCKS <= len(found):
        # A run that was compressed from its start shows in its check windows what it would be without.
        uncompressed = tuple(check.exact for check in found)
    if len(found) < MIN_CHECKS:
        found = ()
    return Evidence(
        stretches=known,
        is_compressed=is_compressed,
        newest=read(present, _num_newest_steps(present) if present else 0),
        uncompressed=uncompressed,
        compressed=read(lossy, MAX_VERDICT_STEPS),
        checks=found,
        checks_epoch=lossy.epoch if lossy is not None else -1,
    )


def checks_of(
    connection: Connection, source: RunSource, known: Sequence[Stretch], lossy: Stretch | None
) -> tuple[Check, ...]:
    """Return the check windows in the epoch of `lossy`, one of the `known` stretches. Cost: as `checks`."""
    if lossy is None:
        return ()
    start = min(s.sums.first_step for s in known if s.epoch == lossy.epoch and s.codec == lossy.codec)
    return tuple(checks(connection, source.id, source.name, lossy, start))


def _present(known: Sequence[Stretch], epoch: int) -> Stretch | None:
    """Return the newest stretch since the last switch, settled if there is one; None when none has arrived yet."""
    newest = max((stretch.epoch for stretch in known), default=-1)
    since = [stretch for stretch in known if stretch.epoch == newest >= epoch and not stretch.is_check]
    return max(since, key=lambda stretch: (not stretch.is_settling, stretch.sums.last_step), default=None)


def _best(candidates: Iterable[Stretch]) -> Stretch | None:
    """Return the newest stretch that is long enough to judge, else the longest."""
    found = list(candidates)
    for stretch in reversed(found):
        if stretch.num_windows >= MIN_BLOCKS * stretch.num_nodes:
            return stretch
    return max(found, key=lambda stretch: stretch.num_windows, default=None)


def _num_newest_steps(stretch: Stretch) -> int:
    seconds = stretch.sums.step / max(1, stretch.sums.num_rank_steps)
    return max(MIN_NEWEST_STEPS, math.ceil(NEWEST_SECONDS / seconds) if seconds > 0 else 0)


def judge(source: RunSource, evidence: Evidence) -> VerdictView:
    """Return the verdict: is it paying off while compressed, is it worth it otherwise."""
    if evidence.is_compressed and source.attempt["world_size"] > 1:
        return paying_off(
            evidence.compressed, evidence.uncompressed, codec=source.plan.codec, checks=evidence.checks
        )
    return worth_it(
        evidence.uncompressed,
        world_size=source.attempt["world_size"],
        suggestion=suggest(source, evidence),
        remaining_steps=source.remaining_steps,
        unknown_reason=evidence.unknown_reason,
    )


def suggest(source: RunSource, evidence: Evidence) -> Suggestion | None:
    """Return the first codec that the agent can run and that sends less than the gradients' own dtype."""
    for name in PREFERRED_CODECS:
        ratio = ratio_on_wire(source, name)
        if name in source.facts.codecs and name not in source.facts.refused_codecs and ratio and ratio > 1:
            return Suggestion(codec=name, wire_ratio=ratio, codec_cost=measured_cost(evidence, name))
    return None


def ratio_on_wire(source: RunSource, codec: str) -> float | None:
    """Return bytes before compression over bytes sent with `codec`, in the dtype that this model really sends.

    None for a codec whose bytes depend on the shapes of the model's tensors, which the service does not know.
    """
    facts, bits = source.facts, CATALOGUE[codec].bits_per_element
    return None if bits is None else wire_ratio(facts.gradient_bytes, facts.num_elements, bits)


def measured_cost(evidence: Evidence, codec: str) -> float | None:
    """Return what the codec added to a step, as a share of the uncompressed step; None before it was used."""
    with_codec = merge(
        stretch.sums for stretch in evidence.stretches if stretch.codec == codec and not stretch.is_settling
    )
    without = merge(evidence.uncompressed)
    if with_codec is None or without is None or without.training <= 0:
        return None
    per_step = with_codec.exposed_codec / max(1, with_codec.num_rank_steps)
    return per_step / (without.training / max(1, without.num_rank_steps))
