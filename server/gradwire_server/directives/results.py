"""What the training made of a change: applied on all ranks, or refused.

The same result comes twice, posted at once by rank 0 and in its stream; whichever comes first counts.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
from gradwire_protocol.records import Refused, Result, Switched
from sqlalchemy import Connection, select, update

from gradwire_server.access.audit import write_audit
from gradwire_server.database.tables import directives, events, models
from gradwire_server.runs.history import append_event


@dataclass(frozen=True)
class ModelRef:
    """Whose gradients are meant: a model of an attempt of a run."""

    run: str
    attempt: str
    model: str


def apply_result(connection: Connection, ref: ModelRef, result: Result, *, now: float) -> bool:
    """Store a vote's result; return False when it is already known.

    Args:
        connection: Of the writer.
        ref: Who voted; a result of an older attempt than the current is noted and changes nothing else.
        result: As rank 0 reports it.
        now: Server's receipt, Unix seconds.
    """
    if isinstance(result, Switched):
        return _apply_switched(connection, ref, result, now)
    return _apply_refused(connection, ref, result, now)


def _apply_switched(connection: Connection, ref: ModelRef, result: Switched, now: float) -> bool:
    if _is_known(connection, ref, "switched", epoch=result.epoch):
        return False
    directive = _directive(connection, ref, result.revision)
    author = "" if directive is None else directive["author"]
    revision = _change_model(connection, ref, result, now)
    append_event(
        connection,
        ref.run,
        at=now,
        agent_at=result.at,
        attempt=ref.attempt,
        model=ref.model,
        step=result.step,
        kind="switched",
        level="warning" if result.cause == "guard" else "info",
        message=_switched_message(result, author),
        data={
            "epoch": result.epoch,
            "revision": revision if result.revision is None else result.revision,
            "codec": result.plan.codec,
            "cause": result.cause,
            "is_rollback": result.is_rollback,
            "num_ranks": result.num_ranks,
            "reason": result.reason,
            "author": author,
            "seconds": None if directive is None else now - directive["requested_at"],
            "residual_norm_dropped": result.residual_norm_dropped,
        },
    )
    if directive is not None:
        answer = {"state": "applied", "applied_step": result.step, "num_ranks_confirmed": result.num_ranks}
        _answer(connection, directive, {**answer, "answered_at": now})
    return True


def _switched_message(result: Switched, author: str) -> str:
    verb = "rolled back to uncompressed" if result.is_rollback else f"switched to {result.plan.codec}"
    by = {"directive": f" by {author}" if author else "", "local": " from a node", "guard": " by the guard"}
    text = f"All {result.num_ranks} ranks {verb} at step {result.step}{by[result.cause]}"
    return f"{text}: {result.reason}" if result.reason else f"{text}."


def _change_model(connection: Connection, ref: ModelRef, result: Switched, now: float) -> int | None:
    """Make the switch the model's present state; return its revision, None if the model has moved on."""
    key = (models.c.run == ref.run, models.c.name == ref.model)
    current = connection.execute(select(models).where(*key)).one_or_none()
    if current is None or current.attempt != ref.attempt or result.epoch <= current.epoch:
        return None
    plan = msgspec.to_builtins(result.plan)
    # A switch that nobody here asked for takes a revision of its own, so that a page made before it is stale.
    revision: int = current.revision if result.cause == "directive" else current.revision + 1
    connection.execute(
        update(models)
        .where(*key)
        .values(
            revision=revision,
            epoch=result.epoch,
            plan=plan,
            since_step=result.step,
            num_ranks_confirmed=result.num_ranks,
        )
    )
    if result.cause != "directive":
        before = {"plan": current.plan, "revision": current.revision}
        after = {"plan": plan, "revision": revision, "step": result.step}
        write_audit(
            connection,
            at=now,
            actor=result.cause,
            action="rollback" if result.is_rollback else "set",
            run=ref.run,
            before=before,
            after=after,
            reason=result.reason,
        )
    return revision


def _apply_refused(connection: Connection, ref: ModelRef, result: Refused, now: float) -> bool:
    if _is_known(connection, ref, "refused", revision=result.revision):
        return False
    refusals = [msgspec.to_builtins(refusal) for refusal in result.refusals]
    first = result.refusals[0] if result.refusals else None
    who = "the training" if first is None else f"rank {first.rank} on {first.host}"
    why = "no reason given" if first is None else first.reason
    append_event(
        connection,
        ref.run,
        at=now,
        agent_at=result.at,
        attempt=ref.attempt,
        model=ref.model,
        step=result.step,
        rank=None if first is None else first.rank,
        kind="refused",
        level="warning",
        message=f"Change {result.revision} was not applied: {who} refused: {why}",
        data={
            "revision": result.revision,
            "num_refusals": len(refusals),
            "host": "" if first is None else first.host,
            "reason": why,
        },
    )
    directive = _directive(connection, ref, result.revision)
    # A switch is a fact and overrules; a refusal of what was superseded or applied meanwhile changes nothing.
    if directive is not None and directive["state"] in ("requested", "delivered"):
        _answer(connection, directive, {"state": "rejected", "answered_at": now, "refusals": refusals})
    return True


def _is_known(connection: Connection, ref: ModelRef, kind: str, **data: int) -> bool:
    """Return whether the history has this result; results are rare and are read by the run's primary key."""
    query = select(events.c.data).where(
        events.c.run == ref.run,
        events.c.attempt == ref.attempt,
        events.c.model == ref.model,
        events.c.kind == kind,
    )
    return any(
        all(known.get(name) == value for name, value in data.items()) for known in connection.scalars(query).all()
    )


def _directive(connection: Connection, ref: ModelRef, revision: int | None) -> dict[str, Any] | None:
    query = select(directives).where(
        directives.c.run == ref.run,
        directives.c.model == ref.model,
        directives.c.revision == revision,
        directives.c.attempt == ref.attempt,
    )
    row = None if revision is None else connection.execute(query).one_or_none()
    return None if row is None else dict(row._mapping)


def _answer(connection: Connection, directive: dict[str, Any], values: dict[str, Any]) -> None:
    connection.execute(
        update(directives)
        .where(
            directives.c.run == directive["run"],
            directives.c.model == directive["model"],
            directives.c.revision == directive["revision"],
        )
        .values(values)
    )
