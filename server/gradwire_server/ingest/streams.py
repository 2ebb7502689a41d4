"""Streams: their beginning, which makes run, attempt, model and node, and their cursor."""

import uuid

import msgspec
from gradwire_protocol.errors import MalformedError
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import AttemptStarted
from sqlalchemy import Connection, bindparam, case, func, insert, select, update

from gradwire_server.database.tables import attempts, models, nodes, runs
from gradwire_server.directives.open import expire_directives
from gradwire_server.errors import GapError
from gradwire_server.runs.history import append_event

# Statements that every batch runs are built once: building one costs as much as running it.
_STREAM = (
    nodes.c.attempt == bindparam("of_attempt"),
    nodes.c.model == bindparam("of_model"),
    nodes.c.node == bindparam("of_node"),
)
_CURSOR = (
    select(nodes.c.cursor, attempts.c.run)
    .join(attempts, attempts.c.id == nodes.c.attempt)
    .where(*_STREAM)
    .with_for_update(of=nodes)
)
_NEW_STEP = bindparam("new_step", type_=nodes.c.last_step.type)
_SEEN_AT = bindparam("seen_at", type_=nodes.c.last_seen_at.type)
_MOVE = (
    update(nodes)
    .where(*_STREAM)
    .values(
        cursor=bindparam("new_cursor"),
        num_dropped=bindparam("new_dropped"),
        # Where a stream is not heard of live, a moment long past is given, and what was stays.
        last_seen_at=case((nodes.c.last_seen_at < _SEEN_AT, _SEEN_AT), else_=nodes.c.last_seen_at),
        last_step=case((nodes.c.last_step < _NEW_STEP, _NEW_STEP), else_=nodes.c.last_step),
    )
)
# A spool that is delivered late says nothing about the life of the attempt that runs now.
_SEE = (
    update(runs)
    .where(runs.c.id == bindparam("of_run"), runs.c.current_attempt == bindparam("of_attempt"))
    .values(last_seen_at=bindparam("now"))
)


def _key(batch: Batch) -> dict[str, str | int]:
    return {"of_attempt": batch.attempt, "of_model": batch.model, "of_node": batch.node}


def lock_cursor(connection: Connection, batch: Batch) -> int | None:
    """Return the number up to which the stream is stored, its row locked; None when nothing of it is.

    Raises:
        MalformedError: The attempt belongs to another run.
    """
    row = connection.execute(_CURSOR, _key(batch)).one_or_none()
    if row is None:
        return None
    _check_run(batch, row.run)
    return int(row.cursor)


def move_cursor(connection: Connection, batch: Batch, *, last_step: int, now: float) -> None:
    """Note that everything up to this batch is stored, and when the server heard of stream and run."""
    progress = {"new_cursor": batch.number, "new_dropped": batch.num_dropped, "new_step": last_step}
    connection.execute(_MOVE, {**_key(batch), **progress, "seen_at": 0.0 if batch.is_late else now})
    if not batch.is_late:
        connection.execute(_SEE, {"of_run": batch.run, "of_attempt": batch.attempt, "now": now})


def begin_stream(connection: Connection, batch: Batch, now: float) -> None:
    """Make the rows that the stream's first record describes.

    Raises:
        GapError: The batch is not the stream's first.
        MalformedError: It does not begin with `attempt_started`, or the attempt belongs to another run.
    """
    if batch.number != 1:
        raise GapError(f"batch {batch.number} of a stream that has nothing stored yet; wanted: 1", wanted=1)
    first = batch.records[0] if batch.records else None
    if not isinstance(first, AttemptStarted):
        raise MalformedError("a stream begins with attempt_started", field="records[0]")
    _ensure_run(connection, batch, first, now)
    _ensure_attempt(connection, batch, first, now)
    _ensure_model(connection, batch, first)
    connection.execute(
        insert(nodes).values(
            attempt=batch.attempt,
            model=batch.model,
            node=batch.node,
            host=first.node.host,
            ranks=list(first.node.ranks),
            cursor=0,
            num_dropped=0,
            last_seen_at=_seen_at(batch, first, now),
            last_step=first.start_step,
        )
    )


def is_current(connection: Connection, batch: Batch) -> bool:
    """Return whether the batch is of the run's current attempt."""
    query = select(runs.c.current_attempt).where(runs.c.id == batch.run)
    return connection.execute(query).scalar() == batch.attempt


def _ensure_run(connection: Connection, batch: Batch, first: AttemptStarted, now: float) -> None:
    known = connection.execute(select(runs.c.id).where(runs.c.id == batch.run).with_for_update()).first()
    if known is None:
        row = {"id": batch.run, "project": first.project, "name": first.run_name}
        seen_at = _seen_at(batch, first, now)
        connection.execute(insert(runs).values({**row, "created_at": now, "last_seen_at": seen_at}))


def _seen_at(batch: Batch, first: AttemptStarted, now: float) -> float:
    """Return when a new stream was heard of; after its death nothing is known but when it said that it began."""
    return min(first.at, now) if batch.is_late else now


def _ensure_attempt(connection: Connection, batch: Batch, first: AttemptStarted, now: float) -> None:
    run = connection.execute(select(attempts.c.run).where(attempts.c.id == batch.attempt)).scalar_one_or_none()
    if run is None:
        _begin_attempt(connection, batch, first, now)
    else:
        _check_run(batch, run)


def _check_run(batch: Batch, run: str) -> None:
    if run != batch.run:
        raise MalformedError(f"attempt {batch.attempt} belongs to run {run}", field="attempt")


def _begin_attempt(connection: Connection, batch: Batch, first: AttemptStarted, now: float) -> None:
    newest = connection.execute(select(func.max(attempts.c.number)).where(attempts.c.run == batch.run)).scalar()
    number = (newest or 0) + 1
    connection.execute(
        insert(attempts).values(
            id=batch.attempt,
            run=batch.run,
            number=number,
            started_at=now,
            world_size=first.world_size,
            start_step=first.start_step,
            total_steps=first.total_steps,
            total_tokens=first.total_tokens,
            facts=msgspec.to_builtins(first),
        )
    )
    previous = connection.execute(select(runs.c.current_attempt).where(runs.c.id == batch.run)).scalar()
    if previous is None or not _is_older(batch.attempt, previous):
        _make_current(connection, batch, previous, number, now)
    append_event(
        connection,
        batch.run,
        at=now,
        agent_at=first.at,
        attempt=batch.attempt,
        model=batch.model,
        step=first.start_step,
        kind="attempt_started",
        message=f"Training started on {first.world_size} ranks at step {first.start_step} (attempt {number}).",
        data={"number": number, "world_size": first.world_size, "codec": first.plan.codec},
    )


def _make_current(connection: Connection, batch: Batch, previous: str | None, number: int, now: float) -> None:
    if previous is not None:
        why = f"the training was restarted (attempt {number}), and old changes die with their attempt"
        expire_directives(connection, batch.run, previous, why=why, now=now)
    connection.execute(
        update(runs)
        .where(runs.c.id == batch.run)
        .values(current_attempt=batch.attempt, final_status=None, status_detail="")
    )


def _is_older(attempt: str, other: str) -> bool:
    """Return whether an attempt was made before another: a spool may deliver it after its successor has begun.

    Ids of version 7 begin with their time in milliseconds; of others nothing is known, so receipt decides.
    """
    ids = (uuid.UUID(attempt), uuid.UUID(other))
    return all(one.version == 7 for one in ids) and ids[0].int >> 80 < ids[1].int >> 80


def _ensure_model(connection: Connection, batch: Batch, first: AttemptStarted) -> None:
    key = (models.c.run == batch.run, models.c.name == batch.model)
    model = connection.execute(select(models).where(*key).with_for_update()).one_or_none()
    state = {
        "attempt": batch.attempt,
        "epoch": 0,
        "plan": msgspec.to_builtins(first.plan),
        "since_step": first.start_step,
        "num_ranks_confirmed": first.world_size,
        "facts": msgspec.to_builtins(first),
    }
    if model is None:
        connection.execute(insert(models).values(run=batch.run, name=batch.model, revision=0, **state))
    elif model.attempt != batch.attempt and is_current(connection, batch):
        # The restart may have changed the plan, so a page made before it is stale.
        connection.execute(update(models).where(*key).values(revision=model.revision + 1, **state))
