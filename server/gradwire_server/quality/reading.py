"""Reads the checks of a run and its chosen baseline."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace
from sqlalchemy import Connection, func, select

from gradwire_server.database.tables import points
from gradwire_server.quality.comparison import Better, Check, compare, pool
from gradwire_server.runs.sources import RunSource, load_source
from gradwire_server.runs.views import Measure, QualityView
from gradwire_server.series.branches import on_line, point_line
from gradwire_server.series.points import weighted_mean

# Evaluations compared, the newest ones.
MAX_EVALUATIONS = 10

# Training loss is noisy and logged at every step: the newest thousand steps in ten ranges.
MAX_LOSS_STEPS = 1000
NUM_LOSS_RANGES = 10

LOSS = "loss"

# By step; None where a node's value was not finite.
Values = Mapping[int, float | None]


def quality(connection: Connection, source: RunSource, first_step: int) -> QualityView:
    """Return the drift of a run against its baseline from `first_step` on.

    An evaluation metric that both runs have and whose direction is known is taken before the training loss.

    Args:
        connection: A reading connection.
        source: The run.
        first_step: Where compression began, or 0.

    Cost: reads at most about a thousand points of each run.
    """
    baseline = baseline_of(connection, source)
    if baseline is None:
        return _without_baseline(connection, source)
    better = {**baseline.facts.better, **source.facts.better}
    for name in [*sorted(set(better) - {LOSS}), LOSS]:
        if _is_evaluation(connection, source, name) and _is_evaluation(connection, baseline, name):
            checks = _checks(connection, source, baseline, name, first_step, MAX_EVALUATIONS)
            break
    else:
        name = LOSS
        checks = pool(_checks(connection, source, baseline, name, first_step, MAX_LOSS_STEPS), NUM_LOSS_RANGES)
    direction: Better = "higher" if better.get(name) == "higher" else "lower"
    view = compare(checks, better=direction)
    return replace(view, metric=name, baseline_id=baseline.id, baseline_name=str(baseline.run["name"]))


def baseline_of(connection: Connection, source: RunSource) -> RunSource | None:
    """Return the chosen run, its model of the same name if it has one."""
    chosen = source.run["baseline_run"]
    if chosen is None:
        return None
    return load_source(connection, chosen, source.name) or load_source(connection, chosen)


def _without_baseline(connection: Connection, source: RunSource) -> QualityView:
    """Even without a baseline, a loss that is no number is a breach."""
    newest = _newest(connection, source, LOSS, limit=1)
    if None not in newest.values():
        return QualityView(state="no_evidence", reason="no_baseline")
    drift = Measure(reason="nonfinite")
    return QualityView(
        state="breach", reason="nonfinite", metric=LOSS, drift=drift, num_checks=1, last_step=max(newest)
    )


def _checks(
    connection: Connection, source: RunSource, baseline: RunSource, name: str, first_step: int, limit: int
) -> list[Check]:
    """Return the newest `limit` steps of the run that the baseline has too, ascending."""
    last_step = max(_newest(connection, baseline, name, limit=1), default=None)
    if last_step is None:
        return []
    values = _newest(connection, source, name, limit=limit, first_step=first_step, last_step=last_step)
    baselines = _values_at(connection, baseline, name, sorted(values))
    return [Check(step, values[step], baselines[step]) for step in sorted(baselines)]


def _is_evaluation(connection: Connection, source: RunSource, name: str) -> bool:
    columns = points.c
    for leg in point_line(connection, source.id, source.name, name)[:1]:
        statement = (
            select(columns.is_evaluation)
            .where(
                columns.run == source.id,
                columns.model == source.name,
                columns.name == name,
                columns.attempt == leg.attempt,
            )
            .order_by(columns.step.desc())
            .limit(1)
        )
        return bool(connection.execute(statement).scalar())
    return False


def _newest(
    connection: Connection,
    source: RunSource,
    name: str,
    *,
    limit: int,
    first_step: int = 0,
    last_step: int | None = None,
) -> Values:
    """Return the values of a metric at its newest `limit` steps of the default line, over all nodes."""
    columns = points.c
    values: dict[int, float | None] = {}
    for leg in point_line(connection, source.id, source.name, name):
        statement = (
            select(columns.step, weighted_mean(), func.count(columns.kind))
            .where(
                columns.run == source.id,
                columns.model == source.name,
                columns.name == name,
                columns.attempt == leg.attempt,
                columns.step >= first_step,
            )
            .group_by(columns.step)
            .order_by(columns.step.desc())
            .limit(limit - len(values))
        )
        if leg.stop_step is not None:
            statement = statement.where(columns.step < leg.stop_step)
        if last_step is not None:
            statement = statement.where(columns.step <= last_step)
        for step, value, num_nonfinite in connection.execute(statement):
            values[step] = None if num_nonfinite else value
        if len(values) >= limit:
            break
    return values


def _values_at(connection: Connection, source: RunSource, name: str, steps: Sequence[int]) -> Values:
    """Return the values of a metric at those of `steps` that its default line has."""
    columns = points.c
    statement = (
        select(columns.step, weighted_mean(), func.count(columns.kind))
        .where(
            columns.run == source.id,
            columns.model == source.name,
            columns.name == name,
            columns.step.in_(steps),
            on_line(point_line(connection, source.id, source.name, name), columns.attempt, columns.step),
        )
        .group_by(columns.step)
    )
    rows = connection.execute(statement)
    return {step: None if num_nonfinite else value for step, value, num_nonfinite in rows}
