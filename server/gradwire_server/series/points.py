"""Queries on user metrics: minimum, maximum, last and count in buckets, so that no spike is lost."""

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, RowMapping, Select, case, func, select

from gradwire_server.database.tables import points
from gradwire_server.series.branches import Leg, on_line, point_line
from gradwire_server.series.buckets import MAX_BUCKETS, bucket_width


class PointBucket(Struct, frozen=True, kw_only=True):
    """A user metric over the steps `first_step` to `last_step`; None where no value is finite.

    The loss is a mean over ranks, weighted by samples; `min` and `max` are those of single ranks.
    """

    first_step: int
    last_step: int
    min: float | None
    max: float | None
    mean: float | None
    last: float | None
    count: int
    num_nonfinite: int


def point_names(connection: Connection, run: str, model: str, *, limit: int = 200) -> list[str]:
    """Return the names of a model's user metrics, sorted; each costs one look-up."""
    names: list[str] = []
    while len(names) < limit:
        statement = select(func.min(points.c.name)).where(points.c.run == run, points.c.model == model)
        if names:
            statement = statement.where(points.c.name > names[-1])
        name = connection.execute(statement).scalar()
        if name is None:
            break
        names.append(name)
    return names


def point_buckets(
    connection: Connection,
    run: str,
    model: str,
    name: str,
    *,
    first_step: int | None = None,
    last_step: int | None = None,
    max_buckets: int = MAX_BUCKETS,
    attempt: str | None = None,
) -> list[PointBucket]:
    """Return a user metric in at most `max_buckets` buckets, ascending by step; arguments as `window_buckets`.

    `last` is the mean over nodes at the newest step with a finite value. Cost: reads every point in the range.
    """
    columns = points.c
    legs = point_line(connection, run, model, name) if attempt is None else (Leg(attempt, 0),)
    is_metric = [columns.run == run, columns.model == model, columns.name == name]
    is_metric.append(on_line(legs, columns.attempt, columns.step))
    if first_step is not None:
        is_metric.append(columns.step >= first_step)
    if last_step is not None:
        is_metric.append(columns.step <= last_step)
    ends = connection.execute(select(func.min(columns.step), func.max(columns.step)).where(*is_metric)).one()
    if ends[0] is None:
        return []
    bucket = columns.step // bucket_width(ends[0], ends[1], max_buckets)
    rows = connection.execute(_bucket_statement(is_metric, bucket)).mappings().all()
    lasts = _values_at(connection, is_metric, [row["last_finite"] for row in rows])
    return [_point_bucket(row, lasts) for row in rows]


def weighted_mean() -> ColumnElement[Any]:
    """Return the mean of the finite values in a group, each by its weight; those without one count 1."""
    weight = func.coalesce(points.c.weight, 1.0)
    weights = func.sum(case((points.c.value.is_not(None), weight)))
    return func.sum(points.c.value * weight) / func.nullif(weights, 0.0)


def _bucket_statement(
    conditions: Sequence[ColumnElement[bool]], bucket: ColumnElement[int]
) -> Select[tuple[object, ...]]:
    columns = points.c
    return (
        select(
            func.min(columns.step).label("first_step"),
            func.max(columns.step).label("last_step"),
            func.min(func.coalesce(columns.low, columns.value)).label("min"),
            func.max(func.coalesce(columns.high, columns.value)).label("max"),
            weighted_mean().label("mean"),
            func.count(columns.value).label("count"),
            func.count(columns.kind).label("num_nonfinite"),
            func.max(case((columns.value.is_not(None), columns.step))).label("last_finite"),
        )
        .where(*conditions)
        .group_by(bucket)
        .order_by(bucket)
    )


def _values_at(
    connection: Connection, conditions: Sequence[ColumnElement[bool]], steps: Sequence[int | None]
) -> dict[int, float]:
    known = [step for step in steps if step is not None]
    statement = (
        select(points.c.step, weighted_mean()).where(*conditions, points.c.step.in_(known)).group_by(points.c.step)
    )
    return {row[0]: row[1] for row in connection.execute(statement)}


def _point_bucket(row: RowMapping, lasts: dict[int, float]) -> PointBucket:
    last_finite = row["last_finite"]
    return PointBucket(
        first_step=row["first_step"],
        last_step=row["last_step"],
        min=row["min"],
        max=row["max"],
        mean=_finite(row["mean"]),
        last=None if last_finite is None else _finite(lasts[last_finite]),
        count=row["count"],
        num_nonfinite=row["num_nonfinite"],
    )


def _finite(value: float | None) -> float | None:
    """A mean of huge values can overflow; it is then unknown."""
    return value if value is not None and math.isfinite(value) else None
