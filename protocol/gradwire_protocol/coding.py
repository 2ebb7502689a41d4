"""Encoding and decoding with the limits applied."""

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from gradwire_protocol import limits
from gradwire_protocol.errors import MalformedError, TooLargeError
from gradwire_protocol.identity import validate_id, validate_name
from gradwire_protocol.messages import PROTOCOL, Batch
from gradwire_protocol.plans import PlanSpec, validate_plan
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

T = TypeVar("T")


def encode(message: object) -> bytes:
    """Return the message as JSON; non-finite floats are refused by the structs' own rules before they get here."""
    return msgspec.json.encode(message)


def decode(body: bytes, kind: type[T]) -> T:
    """Decode one message of type `kind`.

    Raises:
        TooLargeError: The body is over `limits.MAX_BODY_BYTES`.
        MalformedError: It is not JSON, nests too deeply, or a field is missing or of the wrong type.
    """
    if len(body) > limits.MAX_BODY_BYTES:
        raise TooLargeError(
            f"the body has {len(body)} bytes; wanted: at most {limits.MAX_BODY_BYTES}",
            field="body",
            limit=limits.MAX_BODY_BYTES,
        )
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError as error:
        raise MalformedError("nested too deeply", field="body") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message, field = _split(str(error))
        raise MalformedError(message, field=field) from error


def decode_batch(body: bytes) -> Batch:
    """Decode and validate a batch, names, plans and counts included.

    Raises:
        TooLargeError: Body, records or points are over their limit.
        MalformedError: Anything else that is not acceptable; the whole batch is refused.
    """
    batch = decode(body, Batch)
    if batch.protocol != PROTOCOL:
        raise MalformedError(f"protocol {batch.protocol}; wanted: {PROTOCOL}", field="protocol")
    # Ids are compared as text, so they are kept in their one usual form.
    batch.run = validate_id(batch.run, field="run")
    batch.attempt = validate_id(batch.attempt, field="attempt")
    validate_name(batch.model, field="model")
    check_integers(node=batch.node, number=batch.number, num_dropped=batch.num_dropped)
    if batch.number < 1:
        raise MalformedError("number is 0; wanted: 1 or more", field="number")
    if len(batch.records) > limits.MAX_BATCH_RECORDS:
        raise TooLargeError(
            f"{len(batch.records)} records; wanted: at most {limits.MAX_BATCH_RECORDS}",
            field="records",
            limit=limits.MAX_BATCH_RECORDS,
        )
    for index, record in enumerate(batch.records):
        validate_record(record, field=f"records[{index}]")
    return batch


def validate_record(record: Record, *, field: str) -> None:
    """Check what the types cannot say.

    Raises:
        TooLargeError: A list or text is over its limit.
        MalformedError: A name, number or plan is not acceptable.
    """
    if isinstance(record, AttemptStarted):
        validate_name(record.run_name, field=f"{field}.run_name")
        validate_name(record.project, field=f"{field}.project")
        _validate_facts(record, field)
        validate_plan(record.plan, field=f"{field}.plan")
    elif isinstance(record, StepWindow):
        _validate_window(record, field)
    elif isinstance(record, HostWindow):
        _validate_host(record, field)
    elif isinstance(record, Points):
        _validate_points(record, field)
    elif isinstance(record, Event):
        check_integers(**{f"{field}.step": record.step, f"{field}.rank": record.rank or 0})
        _check_word(record.kind, field=f"{field}.kind")
        check_text(record.message, field=f"{field}.message")
        _check_data(record.data, field=f"{field}.data")
    elif isinstance(record, Matched):
        check_integers(**{f"{field}.{name}": getattr(record, name) for name in ("step", "epoch", "num_elements")})
        _check_word(record.codec, field=f"{field}.codec")
        check_text(record.worst_parameter, field=f"{field}.worst_parameter")
    elif isinstance(record, Rehearsed):
        names = ("step", "bucket", "num_elements", "model_elements")
        check_integers(**{f"{field}.{name}": getattr(record, name) for name in names})
        _check_word(record.codec, field=f"{field}.codec")
    elif isinstance(record, AttemptEnded):
        check_integers(**{f"{field}.last_step": record.last_step})
        check_text(record.exception, field=f"{field}.exception")
    elif isinstance(record, Refused):
        check_integers(**{f"{field}.{name}": getattr(record, name) for name in ("step", "epoch", "revision")})
        for index, refusal in enumerate(record.refusals):
            check_sizes(refusal, field=f"{field}.refusals[{index}]")
    elif isinstance(record, Switched):
        check_integers(**{f"{field}.{name}": getattr(record, name) for name in ("step", "epoch", "num_ranks")})
        check_integers(**{f"{field}.revision": record.revision or 0})
        check_text(record.reason, field=f"{field}.reason")
        validate_plan(record.plan, field=f"{field}.plan")


def check_text(text: str, *, field: str) -> None:
    """Refuse free text over the limit.

    Raises:
        TooLargeError: It is longer than `limits.MAX_TEXT_CHARACTERS`.
    """
    if len(text) > limits.MAX_TEXT_CHARACTERS:
        raise TooLargeError(
            f"{len(text)} characters; wanted: at most {limits.MAX_TEXT_CHARACTERS}",
            field=field,
            limit=limits.MAX_TEXT_CHARACTERS,
        )


def check_integers(**values: int) -> None:
    """Refuse counts that are negative or do not fit 64 bits.

    Raises:
        MalformedError: One of them does; the keyword is its path.
    """
    for field, value in values.items():
        if not 0 <= value <= limits.MAX_INTEGER:
            raise MalformedError(f"{field} is {value}; wanted: 0 to {limits.MAX_INTEGER}", field=field)


def check_sizes(value: object, *, field: str) -> None:
    """Refuse whole numbers, texts and lists over their limits, however deep they lie in `value`.

    Plans are passed over: their limits are their own. Floats have none that their type does not say.

    Raises:
        TooLargeError: A text or list is over its limit; `field` is its path.
        MalformedError: A whole number is negative or does not fit 64 bits.
    """
    if isinstance(value, bool | float | PlanSpec):
        return
    if isinstance(value, int):
        check_integers(**{field: value})
    elif isinstance(value, str):
        check_text(value, field=field)
    elif isinstance(value, tuple | dict):
        _check_length(len(value), field)
        # The key of a mapping may be as long as a value.
        entries = enumerate(value) if isinstance(value, tuple) else enumerate((*value, *value.values()))
        for index, entry in entries:
            check_sizes(entry, field=f"{field}[{index}]" if isinstance(value, tuple) else field)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            check_sizes(getattr(value, name), field=f"{field}.{name}")


def _check_data(data: Mapping[str, object], *, field: str) -> None:
    """Refuse an event's data over its limits; its numbers may be negative."""
    _check_length(len(data), field)
    for name, value in data.items():
        check_text(name, field=field)
        if isinstance(value, str):
            check_text(value, field=f"{field}.{name}")


def _check_length(length: int, field: str) -> None:
    if length > limits.MAX_ENTRIES:
        raise TooLargeError(
            f"{length} entries; wanted: at most {limits.MAX_ENTRIES}", field=field, limit=limits.MAX_ENTRIES
        )


def _check_word(word: str, *, field: str) -> None:
    if not 0 < len(word) <= limits.MAX_WORD_CHARACTERS:
        raise MalformedError(
            f"{word[: limits.MAX_WORD_CHARACTERS]!r} has {len(word)} characters; "
            f"wanted: 1 to {limits.MAX_WORD_CHARACTERS}",
            field=field,
        )


def _validate_facts(facts: AttemptStarted, field: str) -> None:
    validate_name(facts.node.host, field=f"{field}.node.host")
    if not 0 < len(facts.node.ranks) <= limits.MAX_RANKS_PER_NODE:
        raise MalformedError(
            f"{len(facts.node.ranks)} ranks; wanted: 1 to {limits.MAX_RANKS_PER_NODE}", field=f"{field}.node.ranks"
        )
    for rank in facts.node.ranks:
        if not 0 <= rank < facts.world_size:
            raise MalformedError(
                f"rank {rank}; wanted: 0 to {facts.world_size - 1}, the world size less one",
                field=f"{field}.node.ranks",
            )
    check_sizes(facts, field=field)


def _validate_window(window: StepWindow, field: str) -> None:
    names = ("first_step", "last_step", "num_steps", "num_rank_steps", "epoch", "logical_bytes", "wire_bytes")
    check_integers(**{f"{field}.{name}": getattr(window, name) for name in (*names, "samples", "tokens")})
    _check_word(window.codec, field=f"{field}.codec")
    check_text(window.unknown_reason, field=f"{field}.unknown_reason")
    if window.last_step < window.first_step:
        raise MalformedError(
            f"last_step {window.last_step} is before first_step {window.first_step}",
            field=f"{field}.last_step",
        )
    if len(window.ranks) > limits.MAX_RANKS_PER_NODE:
        raise TooLargeError(
            f"{len(window.ranks)} ranks; wanted: at most {limits.MAX_RANKS_PER_NODE}",
            field=f"{field}.ranks",
            limit=limits.MAX_RANKS_PER_NODE,
        )
    check_integers(**{f"{field}.ranks[{index}].rank": rank.rank for index, rank in enumerate(window.ranks)})
    for name, value in msgspec.structs.asdict(window.seconds).items():
        if value is not None and not value >= 0:
            raise MalformedError(f"{name} is {value}; wanted: 0 or more seconds", field=f"{field}.seconds.{name}")


def _validate_host(host: HostWindow, field: str) -> None:
    check_sizes(host, field=field)
    if not host.seconds >= 0:
        raise MalformedError(f"seconds is {host.seconds}; wanted: 0 or more", field=f"{field}.seconds")


def _validate_points(points: Points, field: str) -> None:
    validate_name(points.name, field=f"{field}.name")
    if len(points.steps) != len(points.values):
        raise MalformedError(
            f"{len(points.steps)} steps and {len(points.values)} values; wanted: as many",
            field=f"{field}.values",
        )
    for name in ("lows", "highs", "weights"):
        if (count := len(getattr(points, name))) not in (0, len(points.steps)):
            raise MalformedError(
                f"{len(points.steps)} steps and {count} {name}; wanted: as many, or none", field=f"{field}.{name}"
            )
    if not all(weight > 0 for weight in points.weights):
        raise MalformedError("a weight is 0 or less; wanted: positive ones", field=f"{field}.weights")
    if len(points.steps) > limits.MAX_POINTS_PER_RECORD:
        raise TooLargeError(
            f"{len(points.steps)} points; wanted: at most {limits.MAX_POINTS_PER_RECORD}",
            field=f"{field}.steps",
            limit=limits.MAX_POINTS_PER_RECORD,
        )
    for index, (step, value) in enumerate(zip(points.steps, points.values, strict=True)):
        check_integers(**{f"{field}.steps[{index}]": step})
        if (value is None) != (str(index) in points.kinds):
            raise MalformedError(
                "a value is null exactly where kinds names it nan, +inf or -inf",
                field=f"{field}.values[{index}]",
            )


def _split(text: str) -> tuple[str, str]:
    """Turn msgspec's "... - at `$.records[0].step`" into message and path; a missing field's name ends the path."""
    message, _, path = text.partition(" - at `")
    place = path.removesuffix("`").removeprefix("$.").removeprefix("$")
    _, is_missing, name = message.partition("missing required field `")
    if not is_missing:
        return message, place
    return message, ".".join(part for part in (place, name.removesuffix("`")) if part)
