"""Ask for a change: compression set against a known revision, or rolled back at any time."""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from gradwire_protocol.codecs import CATALOGUE
from gradwire_protocol.coding import check_text
from gradwire_protocol.messages import ChangeAnswer, Directive, ReasonRequest, RollbackRequest, SetRequest
from gradwire_protocol.plans import PlanSpec, validate_plan
from sqlalchemy import Connection, Row, insert, select, update

from gradwire_server.access.audit import write_audit
from gradwire_server.database.tables import directives, models, runs
from gradwire_server.directives.open import close_directive, open_directives
from gradwire_server.errors import ClosedError, ConflictError, InvalidError, NotFoundError
from gradwire_server.runs.history import append_event
from gradwire_server.runs.sources import RunSource, load_source
from gradwire_server.runs.status import status

UNCOMPRESSED = PlanSpec(codec="none")


@dataclass(frozen=True)
class Asking:
    """Who asks, and when: the moment counts as the click."""

    author: str
    now: float
    server_started_at: float


def request_set(connection: Connection, run: str, request: SetRequest, asking: Asking) -> ChangeAnswer:
    """Ask the training for a plan; an open change is superseded.

    Raises:
        MalformedError, TooLargeError: The plan or the reason is not acceptable.
        NotFoundError: Run or model is unknown.
        ClosedError: The run ended, is lost, or cannot be steered.
        ConflictError: The state changed since `request.revision`.
        InvalidError: The attempt cannot run the codec, or refuses it and `force` is not set.
    """
    plan = validate_plan(request.plan)
    check_text(request.reason, field="reason")
    source = _steerable(connection, run, request.model, asking)
    _check_revision(connection, source, request.revision)
    _check_codec(source, plan)
    return _ask(connection, source, "set", plan, request.reason, asking)


def request_rollback(connection: Connection, run: str, request: RollbackRequest, asking: Asking) -> ChangeAnswer:
    """Ask for uncompressed training whatever the revision is; the same request twice is one.

    Raises:
        TooLargeError: The reason is too long.
        NotFoundError: Run or model is unknown.
        ClosedError: The run ended, is lost, or cannot be steered.
    """
    check_text(request.reason, field="reason")
    source = _steerable(connection, run, request.model, asking)
    waiting = open_directives(connection, run, model=request.model)
    newest = waiting[-1] if waiting else None
    if newest is not None and newest.kind == "rollback":
        message = f"A rollback by {newest.author} is already waiting for the training."
        return ChangeAnswer(directive=directive_of(newest), is_new=False, message=message)
    if newest is None and source.plan.codec == "none":
        message = f"Already uncompressed since step {source.model['since_step']}."
        return ChangeAnswer(directive=None, is_new=False, message=message)
    return _ask(connection, source, "rollback", UNCOMPRESSED, request.reason, asking)


def add_reason(
    connection: Connection, run: str, revision: int, request: ReasonRequest, asking: Asking
) -> Directive:
    """Give the reason of a change after the fact; an earlier one stays readable in the audit.

    Raises:
        TooLargeError: The reason is too long.
        NotFoundError: There is no such change.
    """
    check_text(request.reason, field="reason")
    key = (directives.c.run == run, directives.c.model == request.model, directives.c.revision == revision)
    row = connection.execute(select(directives).where(*key)).one_or_none()
    if row is None:
        raise NotFoundError(f"run {run[:60]} has no change {revision} of model {request.model!r}", field="revision")
    connection.execute(update(directives).where(*key).values(reason=request.reason))
    append_event(
        connection,
        run,
        at=asking.now,
        attempt=row.attempt,
        model=row.model,
        kind="reason",
        message=f"{asking.author} gave a reason for change {revision}: {request.reason}",
        data={"revision": revision, "author": asking.author, "reason": request.reason},
    )
    write_audit(
        connection,
        at=asking.now,
        actor=asking.author,
        action="reason",
        run=run,
        before={"revision": revision, "model": row.model, "reason": row.reason},
        after={"revision": revision, "model": row.model, "reason": request.reason},
        reason=request.reason,
    )
    return directive_of(connection.execute(select(directives).where(*key)).one())


def directive_of(row: Row[Any]) -> Directive:
    """Return a stored directive as it travels."""
    return Directive(
        revision=row.revision,
        model=row.model,
        kind=row.kind,
        plan=msgspec.convert(row.plan, PlanSpec),
        epoch=row.epoch,
        author=row.author,
        reason=row.reason,
        requested_at=row.requested_at,
    )


def newest_directive(connection: Connection, run: str, model: str) -> Directive | None:
    """Return the newest change that anybody asked for, open or not."""
    query = select(directives).where(directives.c.run == run, directives.c.model == model)
    row = connection.execute(query.order_by(directives.c.revision.desc()).limit(1)).one_or_none()
    return None if row is None else directive_of(row)


def _steerable(connection: Connection, run: str, model: str, asking: Asking) -> RunSource:
    """Return the model's rows, the model locked against another change, if its training can answer one."""
    locked = select(models.c.attempt).where(models.c.run == run, models.c.name == model).with_for_update()
    attempt = connection.execute(locked).scalar_one_or_none()
    source = load_source(connection, run, model)
    if source is None or attempt is None:
        raise _unknown(connection, run, model)
    state = status(source, asking.now, server_started_at=asking.server_started_at)
    if state.name == "lost":
        raise ClosedError(
            f"nothing was heard of this run for {asking.now - state.since:.0f} s, so nobody would answer; "
            "if it still trains, type on any of its nodes: gradwire rollback --local"
        )
    if state.name not in ("running", "silent"):
        raise ClosedError(f"this run has ended ({state.name}), so there is nothing left to change")
    if attempt != source.run["current_attempt"]:
        raise ClosedError(f"the run was restarted without model {model!r}", field="model")
    if not source.facts.is_steered:
        why = "; ".join(source.facts.notes) or "no reason given"
        raise ClosedError(f"this run is measured and not steered: {why}")
    return source


def _unknown(connection: Connection, run: str, model: str) -> NotFoundError:
    if connection.execute(select(runs.c.id).where(runs.c.id == run)).first() is None:
        return NotFoundError(f"run {run[:60]!r} is not known", field="run")
    names = connection.scalars(select(models.c.name).where(models.c.run == run).order_by(models.c.name)).all()
    return NotFoundError(f"model {model[:200]!r} is not known; this run has {', '.join(names)}", field="model")


def _check_revision(connection: Connection, source: RunSource, revision: int) -> None:
    wanted = source.model["revision"]
    if revision == wanted:
        return
    current = newest_directive(connection, source.id, source.name)
    # The newest revision has no directive when the training itself changed the plan.
    is_asked = current is not None and current.revision == wanted
    by = f"by {current.author}" if current is not None and is_asked else "by the training itself"
    raise ConflictError(
        f"the compression was changed meanwhile {by}: revision {revision} was sent, {wanted} is current; "
        "look at the present state and ask again",
        wanted=wanted,
        current=current if is_asked else None,
    )


def _check_codec(source: RunSource, plan: PlanSpec) -> None:
    if source.facts.codecs and plan.codec not in source.facts.codecs:
        raise InvalidError(
            f"this run cannot use {plan.codec}; it can use {', '.join(source.facts.codecs)}", field="plan.codec"
        )
    why = source.facts.refused_codecs.get(plan.codec)
    if why is not None and not plan.force:
        alternative = CATALOGUE[plan.codec].safe_alternative
        advice = f"use {alternative}, or set force" if alternative else "set force"
        raise InvalidError(f"{plan.codec} is refused: {why}; {advice}", field="plan.codec")


def _ask(
    connection: Connection,
    source: RunSource,
    kind: Literal["set", "rollback"],
    plan: PlanSpec,
    reason: str,
    asking: Asking,
) -> ChangeAnswer:
    for row in open_directives(connection, source.id, model=source.name):
        why = f"{asking.author} asked for {plan.codec} instead"
        close_directive(connection, row, state="superseded", why=why, now=asking.now)
    directive = Directive(
        revision=source.model["revision"] + 1,
        model=source.name,
        kind=kind,
        plan=plan,
        epoch=source.model["epoch"],
        author=asking.author,
        reason=reason,
        requested_at=asking.now,
    )
    _insert(connection, source, directive)
    key = (models.c.run == source.id, models.c.name == source.name)
    connection.execute(update(models).where(*key).values(revision=directive.revision))
    _note(connection, source, directive)
    wish = "a rollback to uncompressed" if kind == "rollback" else plan.codec
    message = f"Change {directive.revision}: {asking.author} asked for {wish}."
    return ChangeAnswer(directive=directive, is_new=True, message=message)


def _insert(connection: Connection, source: RunSource, directive: Directive) -> None:
    row = {name: value for name, value in msgspec.structs.asdict(directive).items() if name != "plan"}
    row |= {"run": source.id, "attempt": source.attempt_id, "state": "requested"}
    connection.execute(insert(directives).values(**row, plan=msgspec.to_builtins(directive.plan)))


def _note(connection: Connection, source: RunSource, directive: Directive) -> None:
    codec = directive.plan.codec
    wish = "a rollback to uncompressed" if directive.kind == "rollback" else codec
    append_event(
        connection,
        source.id,
        at=directive.requested_at,
        attempt=source.attempt_id,
        model=source.name,
        kind="requested",
        message=f"{directive.author} asked for {wish} (change {directive.revision}).",
        data={
            "revision": directive.revision,
            "kind": directive.kind,
            "codec": codec,
            "author": directive.author,
            "reason": directive.reason,
        },
    )
    write_audit(
        connection,
        at=directive.requested_at,
        actor=directive.author,
        action=directive.kind,
        run=source.id,
        before={"model": source.name, "revision": source.model["revision"], "plan": source.model["plan"]},
        after={
            "model": source.name,
            "revision": directive.revision,
            "plan": msgspec.to_builtins(directive.plan),
        },
        reason=directive.reason,
    )
