"""From records to what the server accepts: cut to the limits before they are numbered, so no batch is refused."""

import math
from collections.abc import Iterator
from typing import Literal

import msgspec
from gradwire_protocol import limits
from gradwire_protocol.coding import encode, validate_record
from gradwire_protocol.messages import PROTOCOL
from gradwire_protocol.records import AttemptEnded, AttemptStarted, Event, Points, Record, Refused, Switched
from msgspec.structs import replace

from gradwire.transport.place import StreamFacts
from gradwire.transport.spool import SealedBatch

_RECORD = msgspec.json.Decoder(Record)


class _RawBatch(msgspec.Struct, kw_only=True):
    """A `Batch` whose records are already JSON."""

    protocol: int = PROTOCOL
    run: str
    attempt: str
    model: str
    node: int
    number: int
    num_dropped: int
    is_late: bool
    records: tuple[msgspec.Raw, ...]


def encode_batch(facts: StreamFacts, batch: SealedBatch, *, is_late: bool = False) -> bytes:
    """Return the request body of a sealed batch; `is_late` if the process that measured is gone."""
    raw = _RawBatch(
        run=facts.run,
        attempt=facts.attempt,
        model=facts.model,
        node=facts.node,
        number=batch.number,
        num_dropped=batch.num_dropped,
        is_late=is_late,
        records=tuple(msgspec.Raw(record) for record in batch.records),
    )
    return encode(raw)


def weigh(record: Record) -> int:
    """Return how many measurements a record holds: values of a metric one by one, everything else is one."""
    return len(record.steps) if isinstance(record, Points) else 1


def is_urgent(record: Record) -> bool:
    """Return whether a record is sent at once and may use the spool's reserve."""
    return isinstance(record, AttemptStarted | Event | Switched | Refused | AttemptEnded)


def encode_record(record: Record) -> bytes:
    """Return a record as JSON after checking that the server will take it.

    Raises:
        ProtocolError: A number, name or list is outside what the protocol allows.
        msgspec.ValidationError: A value has the wrong type, or is not finite where it must be.
    """
    body = encode(record)
    # JSON turns NaN into null without a word, so what counts is what the other end will read.
    validate_record(_RECORD.decode(body), field="record")
    return body


def fit(record: Record) -> Iterator[Record]:
    """Yield the record cut to the limits: long texts shortened, many points split, non-finite values named."""
    if isinstance(record, Points):
        yield from _split_points(record)
    elif isinstance(record, Event):
        data = {name: _shorten(value) if isinstance(value, str) else value for name, value in record.data.items()}
        yield replace(record, message=_shorten(record.message), data=data)
    elif isinstance(record, Switched):
        yield replace(record, reason=_shorten(record.reason))
    elif isinstance(record, AttemptEnded):
        yield replace(record, exception=_shorten(record.exception))
    else:
        yield record


def kind_of(value: float) -> Literal["nan", "+inf", "-inf"] | None:
    """Return the name of a non-finite value, None for a finite one."""
    if math.isfinite(value):
        return None
    if math.isnan(value):
        return "nan"
    return "+inf" if value > 0 else "-inf"


def _split_points(points: Points) -> Iterator[Points]:
    for start in range(0, len(points.steps), limits.MAX_POINTS_PER_RECORD):
        end = start + limits.MAX_POINTS_PER_RECORD
        values: list[float | None] = []
        kinds: dict[str, Literal["nan", "+inf", "-inf"]] = {}
        for index, value in enumerate(points.values[start:end]):
            kind = points.kinds.get(str(start + index)) if value is None else kind_of(value)
            if kind is not None:
                kinds[str(index)] = kind
            values.append(value if kind is None else None)
        yield replace(
            points,
            steps=points.steps[start:end],
            values=tuple(values),
            kinds=kinds,
            lows=points.lows[start:end],
            highs=points.highs[start:end],
            weights=points.weights[start:end],
        )


def _shorten(text: str) -> str:
    if len(text) <= limits.MAX_TEXT_CHARACTERS:
        return text
    return text[: limits.MAX_TEXT_CHARACTERS - 1] + "…"
