"""Samples of gradients: the newest of each kind stands, and every match is a point of its curve."""

from typing import Any

import msgspec
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import Matched, Points, Rehearsed
from sqlalchemy import Connection, Table, and_, insert, update

from gradwire_server.database.tables import matches, points, rehearsals
from gradwire_server.ingest.rows import point_rows

# The metrics that agents and the service make, beside those of people.
GRADIENT_MATCH = "gradwire/gradient_match"
REPLICAS_EQUAL = "gradwire/replicas_equal"

Values = dict[str, Any]


def store_match(connection: Connection, batch: Batch, found: Matched) -> None:
    """Store a gradient match as the model's newest and as a point."""
    values = msgspec.structs.asdict(found)
    del values["num_elements"]
    _put(connection, matches, {"run": batch.run, "model": batch.model}, {"attempt": batch.attempt, **values})
    curve = Points(name=GRADIENT_MATCH, steps=(found.step,), values=(found.cosine,))
    connection.execute(insert(points), point_rows(batch, curve))


def store_rehearsal(connection: Connection, batch: Batch, found: Rehearsed) -> None:
    """Store what a codec made of a bucket in place of what it made of it before."""
    values = msgspec.structs.asdict(found)
    key = {"run": batch.run, "model": batch.model, "codec": values.pop("codec"), "bucket": values.pop("bucket")}
    values["norm_shares"] = list(found.norm_shares)
    _put(connection, rehearsals, key, {"attempt": batch.attempt, **values})


def _put(connection: Connection, table: Table, key: Values, values: Values) -> None:
    """Overwrite a row, or insert it; only the node of rank 0 sends samples, and its stream is locked."""
    is_row = and_(*(table.c[name] == value for name, value in key.items()))
    if connection.execute(update(table).where(is_row).values(values)).rowcount == 0:
        connection.execute(insert(table), {**key, **values})
