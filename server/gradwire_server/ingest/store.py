"""A batch into the tables, once."""

from dataclasses import dataclass

import msgspec
from gradwire_protocol.errors import MalformedError
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import (
    AttemptEnded,
    AttemptStarted,
    Event,
    HostWindow,
    Matched,
    Points,
    Record,
    Refused,
    Rehearsed,
    StepWindow,
    Switched,
)
from sqlalchemy import Connection, insert, update

from gradwire_server.database.tables import nodes, points, step_windows
from gradwire_server.directives.open import has_open_directive
from gradwire_server.directives.results import ModelRef, apply_result
from gradwire_server.errors import GapError
from gradwire_server.ingest.endings import end_stream
from gradwire_server.ingest.rows import point_rows, window_row
from gradwire_server.ingest.samples import store_match, store_rehearsal
from gradwire_server.ingest.streams import begin_stream, lock_cursor, move_cursor
from gradwire_server.live.hub import Topic
from gradwire_server.runs.history import append_event
from gradwire_server.series import rollup

_INSERT_WINDOWS = insert(step_windows)
_INSERT_POINTS = insert(points)


@dataclass(frozen=True)
class Stored:
    """Where the stream stands now, and what its batch brought."""

    number: int
    is_new: bool
    has_open_directive: bool
    topics: tuple[Topic, ...]


def store_batch(connection: Connection, batch: Batch, *, now: float) -> Stored:
    """Store a validated batch, unless the stream's cursor says that it is already here.

    The cursor's row is locked first, so two senders of one batch store it once; what was stored first stays.

    Raises:
        GapError: Batches before it are missing.
        MalformedError: The stream begins with something else than `attempt_started`, or has it later again.

    Cost: a batch that is already here costs one read by primary key, however long the run is.
    """
    cursor = lock_cursor(connection, batch)
    if cursor is None:
        begin_stream(connection, batch, now)
        cursor = 0
    if batch.number <= cursor:
        return Stored(cursor, False, has_open_directive(connection, batch.run), ())
    if batch.number > cursor + 1:
        raise GapError(f"batch {batch.number} after batch {cursor}; wanted: {cursor + 1}", wanted=cursor + 1)
    last_step = max((record.last_step for record in batch.records if isinstance(record, StepWindow)), default=0)
    move_cursor(connection, batch, last_step=last_step, now=now)
    _store_measurements(connection, batch, now)
    _store_host(connection, batch)
    has_news = _store_news(connection, batch, now)
    topics: tuple[Topic, ...] = ("data", "event") if has_news else ("data",)
    return Stored(batch.number, True, has_open_directive(connection, batch.run), topics)


def _store_measurements(connection: Connection, batch: Batch, now: float) -> None:
    windows = [window_row(batch, record, now) for record in batch.records if isinstance(record, StepWindow)]
    if windows:
        connection.execute(_INSERT_WINDOWS, windows)
        rollup.add(connection, windows)
    for record in batch.records:
        if isinstance(record, Matched):
            store_match(connection, batch, record)
        elif isinstance(record, Rehearsed):
            store_rehearsal(connection, batch, record)
    values = [row for record in batch.records if isinstance(record, Points) for row in point_rows(batch, record)]
    if values:
        connection.execute(_INSERT_POINTS, values)


def _store_host(connection: Connection, batch: Batch) -> None:
    """Keep what the node's machine did last; a stream's batches come in order."""
    newest = next((record for record in reversed(batch.records) if isinstance(record, HostWindow)), None)
    if newest is not None:
        key = (nodes.c.attempt == batch.attempt, nodes.c.model == batch.model, nodes.c.node == batch.node)
        connection.execute(update(nodes).where(*key).values(host_window=msgspec.to_builtins(newest)))


def _store_news(connection: Connection, batch: Batch, now: float) -> bool:
    """Store what the history tells; return whether it grew."""
    news = [_store_one(connection, batch, index, record, now) for index, record in enumerate(batch.records)]
    return any(news)


def _store_one(connection: Connection, batch: Batch, index: int, record: Record, now: float) -> bool:
    match record:
        case AttemptStarted():
            if index != 0 or batch.number != 1:
                raise MalformedError("attempt_started only begins a stream", field=f"records[{index}]")
            return True
        case Event():
            _store_event(connection, batch, record, now)
            return True
        case Switched() | Refused():
            return apply_result(connection, ModelRef(batch.run, batch.attempt, batch.model), record, now=now)
        case AttemptEnded():
            end_stream(connection, batch, record, now)
            return True
        case _:
            return False


def _store_event(connection: Connection, batch: Batch, record: Event, now: float) -> None:
    append_event(
        connection,
        batch.run,
        at=now,
        agent_at=record.at,
        attempt=batch.attempt,
        model=batch.model,
        step=record.step,
        rank=record.rank,
        kind=record.kind,
        level=record.level,
        message=record.message,
        data=record.data,
    )
