"""What samples of gradients tell: how close decoded ones come, what every codec would do, and equal copies."""

from collections.abc import Sequence

from sqlalchemy import Connection, RowMapping, select

from gradwire_server.database.tables import matches, points, rehearsals
from gradwire_server.ingest.samples import REPLICAS_EQUAL
from gradwire_server.runs.sources import RunSource
from gradwire_server.runs.views import MatchView, RehearsalView, ReplicasView, SamplesView

# Codecs times buckets; a model with more buckets shows the first ones.
_MAX_ROWS = 2000


def samples_view(connection: Connection, source: RunSource) -> SamplesView:
    """Return what is known of the current attempt. Cost: three queries by key."""
    return SamplesView(
        match=_match(connection, source),
        replicas=_replicas(connection, source),
        rehearsal=_rehearsal(connection, source),
    )


def _match(connection: Connection, source: RunSource) -> MatchView | None:
    """Return the newest gradient match of the codec in use, None before there is one."""
    columns = matches.c
    statement = select(matches).where(
        columns.run == source.id,
        columns.model == source.name,
        columns.attempt == source.attempt_id,
        columns.epoch == source.model["epoch"],
    )
    row = connection.execute(statement).mappings().one_or_none()
    if row is None:
        return None
    names = ("step", "codec", "cosine", "relative_error", "worst_parameter", "worst_cosine")
    return MatchView(**{name: row[name] for name in names})


def _replicas(connection: Connection, source: RunSource) -> ReplicasView | None:
    """Return when the copies of the model were compared last and whether they were equal, None before."""
    columns = points.c
    statement = (
        select(columns.step, columns.value)
        .where(columns.run == source.id, columns.model == source.name, columns.name == REPLICAS_EQUAL)
        .where(columns.attempt == source.attempt_id)
        .order_by(columns.step.desc())
        .limit(1)
    )
    row = connection.execute(statement).one_or_none()
    return None if row is None else ReplicasView(step=row.step, are_equal=row.value == 1)


def _rehearsal(connection: Connection, source: RunSource) -> tuple[RehearsalView, ...]:
    """Return what each codec made of this model's gradients, over the buckets that were tried so far."""
    columns = rehearsals.c
    statement = (
        select(rehearsals)
        .where(columns.run == source.id, columns.model == source.name, columns.attempt == source.attempt_id)
        .order_by(columns.bucket)
        .limit(_MAX_ROWS)
    )
    by_codec: dict[str, list[RowMapping]] = {}
    for row in connection.execute(statement).mappings():
        by_codec.setdefault(row["codec"], []).append(row)
    return tuple(_view(codec, rows) for codec, rows in by_codec.items())


def _view(codec: str, rows: Sequence[RowMapping]) -> RehearsalView:
    tried: int = max(1, sum(row["num_elements"] for row in rows))

    def mean(values: Sequence[float]) -> float:
        total: float = sum(value * row["num_elements"] for value, row in zip(values, rows, strict=True))
        return total / tried

    scale = rows[-1]["model_elements"] / tried
    return RehearsalView(
        codec=codec,
        cosine=mean([row["cosine"] for row in rows]),
        relative_error=mean([row["relative_error"] for row in rows]),
        encode_seconds=scale * sum(row["encode_seconds"] for row in rows),
        decode_seconds=scale * sum(row["decode_seconds"] for row in rows),
        num_buckets=len(rows),
        last_step=max(row["step"] for row in rows),
        norm_shares=tuple(mean([row["norm_shares"][place] for row in rows]) for place in range(3)),
    )
