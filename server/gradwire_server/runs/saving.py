"""What compression saved, will save and could save in a run, from the evidence of its current attempt."""

from collections.abc import Collection, Mapping
from functools import reduce

from sqlalchemy import Connection

from gradwire_server.runs.evidence import Evidence, checks_of
from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import Measure, SavingView, StatusView, VerdictView
from gradwire_server.series.checks import Check
from gradwire_server.series.sums import StepSums, merge
from gradwire_server.series.windows import Stretch
from gradwire_server.verdict import reasons
from gradwire_server.verdict.intervals import MIN_BLOCKS
from gradwire_server.verdict.paying import MIN_CHECKS, checked_speed
from gradwire_server.verdict.savings import could_save, saved, saved_by_checks, together, will_save

# Windows of this many epochs are read, the newest: each takes some ten milliseconds.
MAX_CHECKED_EPOCHS = 16


def saving(
    connection: Connection, source: RunSource, evidence: Evidence, verdict: VerdictView, state: StatusView
) -> SavingView:
    """Return the three savings. Cost: as `checks`, for each change of the codec that has enough check windows."""
    is_over = state.name in ("finished", "failed", "interrupted")
    remaining = source.remaining_steps
    rank_steps_left = None if remaining is None else remaining * source.attempt["world_size"]
    so_far, num_checks = _saved_so_far(connection, source, evidence)
    if is_over:
        over = Measure(reason=reasons.IS_OVER)
        return SavingView(saved_hours=so_far, num_checks=num_checks, will_save_hours=over, could_save_hours=over)
    if evidence.is_compressed:
        speed = checked_speed(evidence.checks)
        coming = will_save(evidence.compressed, evidence.uncompressed, rank_steps_left, speed)
        could = Measure(reason=reasons.IS_COMPRESSED)
    else:
        coming = Measure(reason=reasons.IS_UNCOMPRESSED)
        could = could_save(evidence.uncompressed, verdict.expected_speedup, rank_steps_left)
    return SavingView(saved_hours=so_far, num_checks=num_checks, will_save_hours=coming, could_save_hours=could)


def _saved_so_far(connection: Connection, source: RunSource, evidence: Evidence) -> tuple[Measure, int]:
    """Return what was saved, and in how many check windows it was measured.

    Every epoch with enough windows is judged by them, the rest against uncompressed steps. Where some of it cannot
    be told, as right after a change, it counts as nothing saved: what was measured before stays.
    """
    checked = _checked(connection, source, evidence)
    parts = [
        saved_by_checks(
            _total(evidence, {epoch}), merge(s.sums for s in _settled(evidence, epoch)), checked_speed(found)
        )
        for epoch, found in checked.items()
    ]
    rest = _total(evidence, {stretch.epoch for stretch in evidence.stretches} - checked.keys())
    if rest is not None or not checked:
        parts.append(saved(rest, evidence.compressed, _uncompressed(evidence, checked)))
    return reduce(together, parts), sum(len(found) for found in checked.values())


def _checked(connection: Connection, source: RunSource, evidence: Evidence) -> Mapping[int, tuple[Check, ...]]:
    """Return the check windows of each epoch that has enough of them."""
    found = {evidence.checks_epoch: evidence.checks} if evidence.checks else {}
    # The steps before the switch may be one more window than these.
    epochs = {
        stretch.epoch
        for stretch in evidence.stretches
        if stretch.is_check and not stretch.is_settling and stretch.num_windows >= MIN_CHECKS - 1
    }
    for epoch in sorted(epochs - found.keys(), reverse=True)[:MAX_CHECKED_EPOCHS]:
        lossy = next(iter(_settled(evidence, epoch)), None)
        windows = checks_of(connection, source, evidence.stretches, lossy)
        if len(windows) >= MIN_CHECKS:
            found[epoch] = windows
    return found


def _total(evidence: Evidence, epochs: Collection[int]) -> StepSums | None:
    """Return the compressed steps of epochs, settling ones and those of check windows included: they all cost."""
    return merge(
        stretch.sums
        for stretch in evidence.stretches
        if stretch.epoch in epochs and (stretch.codec != "none" or stretch.is_check)
    )


def _settled(evidence: Evidence, epoch: int) -> list[Stretch]:
    """Return the settled compressed steps of an epoch: one stretch, or none."""
    return [s for s in evidence.stretches if s.epoch == epoch and s.codec != "none" and not s.is_settling]


def _uncompressed(evidence: Evidence, checked: Mapping[int, tuple[Check, ...]]) -> tuple[StepSums, ...]:
    """Return uncompressed steps; of a run that was compressed from its start, those of all its check windows."""
    if len(evidence.uncompressed) >= MIN_BLOCKS:
        return evidence.uncompressed
    return tuple(check.exact for found in checked.values() for check in found)
