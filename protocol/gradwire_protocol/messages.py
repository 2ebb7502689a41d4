"""Requests and answers between agent, server and people."""

from typing import Literal

from msgspec import Struct, field

from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import Record, Result

PROTOCOL = 1


class Batch(Struct, kw_only=True):
    """Consecutive records of one stream; (run, attempt, model, node) is the stream, `number` counts from 1."""

    protocol: int = PROTOCOL
    run: str
    attempt: str
    model: str
    node: int
    number: int
    # Measurements this stream had to drop so far: windows and events count one each, metrics value by value.
    num_dropped: int = 0
    # Sent by another process than the one that measured, which is gone: no sign of life.
    is_late: bool = False
    records: tuple[Record, ...]


class BatchAnswer(Struct, kw_only=True):
    """The server holds everything up to `number` of the stream."""

    number: int
    # Send the next batch after this long, seconds.
    interval_seconds: float


class Directive(Struct, kw_only=True):
    """A change that somebody asked for."""

    revision: int
    model: str
    kind: Literal["set", "rollback"]
    plan: PlanSpec
    # Switch epoch the server knew when the change was made; a guard's rollback since then beats it.
    epoch: int
    author: str
    reason: str = ""
    requested_at: float = 0.0


class DirectiveAnswer(Struct, kw_only=True):
    """Answer to the agent's long poll: the newest open directive, or None when the wait ran out."""

    directive: Directive | None = None


class ResultReport(Struct, kw_only=True):
    """A vote's result, posted by rank 0 at once; the same record follows in its stream and counts once."""

    attempt: str
    model: str
    result: Result


class SetRequest(Struct, kw_only=True):
    """Ask for a plan, made against revision `revision` of the run's model."""

    plan: PlanSpec
    revision: int
    model: str = "model"
    reason: str = ""


class RollbackRequest(Struct, kw_only=True):
    """Ask for uncompressed training, at once and whatever the revision is."""

    model: str = "model"
    reason: str = ""


class ChangeAnswer(Struct, kw_only=True):
    """Answer to a request for a change, in one sentence; `is_new` is false where there was nothing to do.

    `directive` is the one that now waits for the training, None when none does.
    """

    directive: Directive | None = None
    is_new: bool
    message: str


class ReasonRequest(Struct, kw_only=True):
    """Add a reason to a change after it was made."""

    reason: str
    model: str = "model"


class BaselineRequest(Struct, kw_only=True):
    """Choose the run that quality is compared with; None takes the choice back."""

    baseline: str | None


class ErrorDetail(Struct, kw_only=True):
    """What was wrong, what was got, what is wanted."""

    # "malformed", "invalid", "too_large", "timeout", "unauthorized", "forbidden", "not_found",
    # "method_not_allowed", "conflict", "gap", "closed", "unavailable", "internal"
    code: str
    message: str
    field: str = ""
    limit: int | None = None
    # "gap": the number the stream must go on with. "conflict": the present state, and who made it.
    wanted: int | None = None
    current: Directive | None = None


class ErrorAnswer(Struct, kw_only=True):
    """The one shape of every error."""

    error: ErrorDetail = field(default_factory=lambda: ErrorDetail(code="internal", message="internal error"))
