"""The default line of a run: which attempt each step is taken from.

A resumed run is a branch: from the first step that a newer attempt has, the older ones are off the line. Their
steps stay stored and are read by naming the attempt.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from sqlalchemy import Column, ColumnElement, Connection, and_, func, or_, select
from sqlalchemy.sql import false

from gradwire_server.database.tables import attempts, points, step_windows

# A statement names each attempt; the newest two hundred restarts of a run are on its line.
MAX_LEGS = 200


class Leg(Struct, frozen=True):
    """The steps from `first_step` up to, not including, `stop_step` of one attempt."""

    attempt: str
    first_step: int
    stop_step: int | None = None


def line(starts: Iterable[tuple[str, int]]) -> tuple[Leg, ...]:
    """Lay attempts end to end.

    Args:
        starts: Attempt and first step with data, in the order of the attempts' numbers, newest first.
    """
    legs = []
    stop: int | None = None
    for attempt, start in newest_first(starts):
        if stop is None or start < stop:
            legs.append(Leg(attempt, start, stop))
            stop = start
    return tuple(legs[:MAX_LEGS])


def newest_first(starts: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the attempts by the time they began, where their ids tell it.

    Numbers count receipts, and a spool may deliver an attempt after its successor. Ids of version 7 sort by time.
    """
    known = list(starts)
    if all(attempt[14:15] == "7" for attempt, _ in known):
        # The first 48 bits are milliseconds; within one of them the numbers decide.
        known.sort(key=lambda start: start[0][:13], reverse=True)
    return known


def window_line(connection: Connection, run: str, model: str) -> tuple[Leg, ...]:
    """Return the default line of a model's step windows."""
    statement = (
        select(attempts.c.id, func.min(step_windows.c.first_step))
        .join(step_windows, step_windows.c.attempt == attempts.c.id)
        .where(step_windows.c.run == run, step_windows.c.model == model, step_windows.c.level == 2)
        .group_by(attempts.c.id, attempts.c.number)
        .order_by(attempts.c.number.desc())
    )
    return line((row[0], row[1]) for row in connection.execute(statement))


def point_line(connection: Connection, run: str, model: str, name: str) -> tuple[Leg, ...]:
    """Return the default line of a user metric."""
    first_step = (
        select(func.min(points.c.step))
        .where(
            points.c.run == run,
            points.c.model == model,
            points.c.name == name,
            points.c.attempt == attempts.c.id,
        )
        .scalar_subquery()
    )
    statement = select(attempts.c.id, first_step).where(attempts.c.run == run).order_by(attempts.c.number.desc())
    return line((row[0], row[1]) for row in connection.execute(statement) if row[1] is not None)


def on_line(legs: Sequence[Leg], attempt: Column[str], step: Column[int]) -> ColumnElement[bool]:
    """Return the condition that a row lies on the line."""
    return or_(false(), *(_on_leg(leg, attempt, step) for leg in legs))


def _on_leg(leg: Leg, attempt: Column[str], step: Column[int]) -> ColumnElement[bool]:
    conditions = [attempt == leg.attempt]
    if leg.stop_step is not None:
        conditions.append(step < leg.stop_step)
    return and_(*conditions)
