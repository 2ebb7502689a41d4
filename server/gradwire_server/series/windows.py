"""Queries on step windows for charts and verdicts: bounded answers whatever the run's length."""

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Connection, RowMapping, case, func, select

from gradwire_server.database.tables import step_windows
from gradwire_server.series.branches import Leg, on_line, window_line
from gradwire_server.series.buckets import MAX_BUCKETS, bucket_width
from gradwire_server.series.rollup import LEVEL_1_STEPS
from gradwire_server.series.sums import StepSums


class Stretch(Struct, frozen=True, kw_only=True):
    """Totals of all steps of one attempt with the same epoch, codec, settling and check, over all nodes."""

    attempt: str
    epoch: int
    codec: str
    is_settling: bool
    is_check: bool = False
    num_windows: int
    unknown_reason: str
    received_at: float
    num_nodes: int
    sums: StepSums

    @property
    def steps_per_window(self) -> int:
        """Mean number of steps in a window, rounded up."""
        # `num_windows` counts the nodes' windows, `num_steps` each step once.
        return max(1, math.ceil(self.sums.num_steps * self.num_nodes / max(1, self.num_windows)))


def stretches(connection: Connection, run: str, model: str, *, attempt: str | None = None) -> list[Stretch]:
    """Return the stretches of a model in the order of their steps, oldest first.

    Cost: reads one row per switch and node.
    """
    columns = step_windows.c
    keys = (columns.attempt, columns.epoch, columns.codec, columns.is_settling, columns.is_check)
    statement = (
        select(
            *keys,
            func.sum(columns.num_windows).label("num_windows"),
            func.max(columns.unknown_reason).label("unknown_reason"),
            func.max(columns.received_at).label("received_at"),
            func.count(columns.node.distinct()).label("num_nodes"),
            *SUM_COLUMNS,
        )
        .where(columns.run == run, columns.model == model, columns.level == 2)
        .group_by(*keys)
        .order_by(columns.epoch, func.min(columns.first_step))
    )
    if attempt is not None:
        statement = statement.where(columns.attempt == attempt)
    return [_stretch(row) for row in connection.execute(statement).mappings()]


def blocks(
    connection: Connection, run: str, model: str, stretch: Stretch, *, first_step: int, num_blocks: int
) -> list[StepSums]:
    """Cut the steps of a stretch from `first_step` on into at most `num_blocks` + 1 blocks, oldest first.

    A block is never shorter than a window, so that all nodes' windows of its steps fall into it.
    """
    columns = step_windows.c
    last_step = stretch.sums.last_step
    width = max(math.ceil((last_step - first_step + 1) / num_blocks), stretch.steps_per_window)
    level = 1 if width >= LEVEL_1_STEPS else 0
    if level == 1:
        first_step -= first_step % LEVEL_1_STEPS
    block = (columns.first_step - first_step) // width
    statement = (
        select(*SUM_COLUMNS)
        .where(
            columns.run == run,
            columns.model == model,
            columns.level == level,
            columns.first_step.between(first_step, last_step),
            columns.attempt == stretch.attempt,
            columns.epoch == stretch.epoch,
            columns.codec == stretch.codec,
            columns.is_settling == stretch.is_settling,
            columns.is_check == stretch.is_check,
        )
        .group_by(block)
        .order_by(block)
    )
    return [sums_of(row) for row in connection.execute(statement).mappings()]


def window_buckets(
    connection: Connection,
    run: str,
    model: str,
    *,
    first_step: int | None = None,
    last_step: int | None = None,
    max_buckets: int = MAX_BUCKETS,
    attempt: str | None = None,
) -> list[StepSums]:
    """Return the sums of step windows in at most `max_buckets` buckets, ascending by step.

    Args:
        connection: A reading connection.
        run: Id of the run.
        model: Name of the model.
        first_step: First step wanted; None for the line's first.
        last_step: Last step wanted; None for the line's last.
        max_buckets: Most buckets to return, 1 or more.
        attempt: An attempt to read alone; None for the default line.

    Cost: reads at most 64 `max_buckets` windows of each node, or one row for each 64 steps.
    """
    columns = step_windows.c
    legs = window_line(connection, run, model) if attempt is None else (Leg(attempt, 0),)
    first, last = _ends(connection, run, model, legs)
    first = first if first_step is None else max(first_step, first)
    last = last if last_step is None else min(last_step, last)
    if first > last:
        return []
    width = bucket_width(first, last, max_buckets)
    level = 1 if width >= LEVEL_1_STEPS else 0
    bucket = columns.first_step // width
    statement = (
        select(*SUM_COLUMNS)
        .where(
            columns.run == run,
            columns.model == model,
            columns.level == level,
            columns.first_step.between(first - first % LEVEL_1_STEPS if level == 1 else first, last),
            on_line(legs, columns.attempt, columns.first_step),
        )
        .group_by(bucket)
        .order_by(bucket)
    )
    return [sums_of(row) for row in connection.execute(statement).mappings()]


def _ends(connection: Connection, run: str, model: str, legs: Sequence[Leg]) -> tuple[int, int]:
    """Return first and last step of the attempts; 0 and -1 when they have none."""
    columns = step_windows.c
    statement = select(func.min(columns.first_step), func.max(columns.last_step)).where(
        columns.run == run,
        columns.model == model,
        columns.level == 2,
        columns.attempt.in_([leg.attempt for leg in legs]),
    )
    first, last = connection.execute(statement).one()
    return (0, -1) if first is None else (first, last)


def _sum_columns() -> list[ColumnElement[Any]]:
    columns = step_windows.c
    transfer = columns.exposed_transfer_seconds
    names = {
        "step": "step_seconds",
        "pause": "pause_seconds",
        "data_wait": "data_wait_seconds",
        "forward": "forward_seconds",
        "backward": "backward_seconds",
        "exposed_communication": "exposed_communication_seconds",
        "exposed_codec": "exposed_codec_seconds",
        "optimizer": "optimizer_seconds",
        "other": "other_seconds",
        "overlapped": "overlapped_seconds",
        "encode": "encode_seconds",
        "decode": "decode_seconds",
        "agent": "agent_seconds",
        "logical_bytes": "logical_bytes",
        "wire_bytes": "wire_bytes",
        "samples": "samples",
        "tokens": "tokens",
        "num_rank_steps": "num_rank_steps",
        "num_node_steps": "num_steps",
    }
    known = {"known_step": "step_seconds", "known_pause": "pause_seconds", "known_rank_steps": "num_rank_steps"}
    split = {"exposed_transfer": "exposed_transfer_seconds", "straggler_wait": "straggler_wait_seconds"}
    return [
        func.min(columns.first_step).label("first_step"),
        func.max(columns.last_step).label("last_step"),
        func.min(columns.step_seconds_min).label("step_min"),
        func.max(columns.step_seconds_max).label("step_max"),
        func.count(columns.node.distinct()).label("num_sum_nodes"),
        *(func.sum(columns[column]).label(name) for name, column in names.items()),
        *(func.coalesce(func.sum(columns[column]), 0.0).label(name) for name, column in split.items()),
        *(
            func.sum(case((transfer.is_not(None), columns[column]), else_=0)).label(name)
            for name, column in known.items()
        ),
    ]


# What `sums_of` reads.
SUM_COLUMNS = _sum_columns()


def sums_of(row: RowMapping) -> StepSums:
    """Return a row of `SUM_COLUMNS` as sums."""
    # PostgreSQL adds BIGINT up to NUMERIC, which arrives as Decimal.
    counts = ("num_rank_steps", "known_rank_steps", "logical_bytes", "wire_bytes", "samples", "tokens")
    values = {name: row[name] for name in StepSums.__struct_fields__ if name not in ("num_steps", *counts)}
    num_steps = round(row["num_node_steps"] / row["num_sum_nodes"])
    return StepSums(num_steps=num_steps, **values, **{name: int(row[name]) for name in counts})


def _stretch(row: RowMapping) -> Stretch:
    return Stretch(
        attempt=row["attempt"],
        epoch=row["epoch"],
        codec=row["codec"],
        is_settling=bool(row["is_settling"]),
        is_check=bool(row["is_check"]),
        num_windows=int(row["num_windows"]),
        unknown_reason=row["unknown_reason"],
        received_at=row["received_at"],
        num_nodes=row["num_nodes"],
        sums=sums_of(row),
    )
