"""Rollups of step windows, written as data arrives.

Level 1 holds the sums of an aligned range of `LEVEL_1_STEPS` steps, level 2 those of a whole stretch. Only windows
of the same attempt, node, epoch, codec, settling and check merge, and only where the split of communication is
known for both or for neither: no unknown part ever hides in a sum, and what is unknown can be counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Update, bindparam, case, insert, update

from gradwire_server.database.tables import step_windows

# A chart of 300 buckets reads at most 300 * 64 rows of a node at level 0, and 1e6 / 64 at level 1: as many.
LEVEL_1_STEPS = 64

SUMS = (
    "num_windows",
    "num_steps",
    "num_rank_steps",
    "wall_seconds",
    "step_seconds",
    "data_wait_seconds",
    "forward_seconds",
    "backward_seconds",
    "exposed_communication_seconds",
    "exposed_transfer_seconds",
    "straggler_wait_seconds",
    "exposed_codec_seconds",
    "optimizer_seconds",
    "pause_seconds",
    "other_seconds",
    "overlapped_seconds",
    "encode_seconds",
    "decode_seconds",
    "agent_seconds",
    "logical_bytes",
    "wire_bytes",
    "samples",
    "tokens",
)
MINIMA = ("first_step", "started_at", "step_seconds_min")
MAXIMA = ("last_step", "received_at", "step_seconds_max")
KEY = ("run", "attempt", "model", "node", "epoch", "codec", "is_settling", "is_check")

Row = Mapping[str, Any]


def add(connection: Connection, rows: Sequence[Row]) -> None:
    """Add windows just inserted at level 0 to levels 1 and 2, inside the caller's transaction.

    Args:
        connection: The connection that inserted the windows; the caller holds their stream's row.
        rows: Their `step_windows` columns, level 0.

    Cost: one or two statements for each level and key in `rows`, independent of the run's length.
    """
    for level in (1, 2):
        for members in _grouped(rows, level):
            _merge(connection, level, members)


def _grouped(rows: Iterable[Row], level: int) -> Iterable[list[Row]]:
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        start = row["first_step"] // LEVEL_1_STEPS if level == 1 else None
        is_known = row["exposed_transfer_seconds"] is not None
        groups.setdefault((start, is_known, *(row[name] for name in KEY)), []).append(row)
    return groups.values()


def _merge(connection: Connection, level: int, members: list[Row]) -> None:
    merged = _sum(members)
    merged["level"] = level
    if level == 1:
        # The aligned start is part of the index, so that the row is found by equality.
        merged["first_step"] -= merged["first_step"] % LEVEL_1_STEPS
    is_known = merged["exposed_transfer_seconds"] is not None
    statement = _UPDATES[level, is_known]
    parameters = {f"new_{name}": value for name, value in merged.items()}
    if connection.execute(statement, parameters).rowcount == 0:
        connection.execute(insert(step_windows), merged)


def _sum(members: list[Row]) -> dict[str, Any]:
    merged: dict[str, Any] = {name: members[0][name] for name in KEY}
    for name in SUMS:
        values = [row[name] for row in members]
        merged[name] = None if None in values else sum(values)
    merged |= {name: min(row[name] for row in members) for name in MINIMA}
    merged |= {name: max(row[name] for row in members) for name in MAXIMA}
    merged["unknown_reason"] = next((row["unknown_reason"] for row in members if row["unknown_reason"]), "")
    return merged


def _update(level: int, is_known: bool) -> Update:
    columns = step_windows.c
    transfer = columns.exposed_transfer_seconds
    conditions = [columns[name] == bindparam(f"new_{name}") for name in KEY]
    conditions += [columns.level == level, transfer.is_not(None) if is_known else transfer.is_(None)]
    if level == 1:
        conditions.append(columns.first_step == bindparam("new_first_step"))
    values: dict[str, ColumnElement[Any]] = {name: columns[name] + bindparam(f"new_{name}") for name in SUMS}
    for name in MINIMA:
        new = bindparam(f"new_{name}", type_=columns[name].type)
        values[name] = case((columns[name] <= new, columns[name]), else_=new)
    for name in MAXIMA:
        new = bindparam(f"new_{name}", type_=columns[name].type)
        values[name] = case((columns[name] >= new, columns[name]), else_=new)
    reason = bindparam("new_unknown_reason", type_=columns.unknown_reason.type)
    values["unknown_reason"] = case((columns.unknown_reason != "", columns.unknown_reason), else_=reason)
    return update(step_windows).where(*conditions).values(values)


_UPDATES = {(level, is_known): _update(level, is_known) for level in (1, 2) for is_known in (False, True)}
