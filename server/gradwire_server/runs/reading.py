"""Builds what pages and the API show of a run; every query is bounded, whatever the run's length."""

from gradwire_protocol import limits
from gradwire_protocol.codecs import CATALOGUE
from msgspec.structs import asdict
from sqlalchemy import Connection, RowMapping, and_, func, or_, select

from gradwire_server.database.tables import points, runs
from gradwire_server.quality.reading import quality
from gradwire_server.runs import loop
from gradwire_server.runs.changes import changes, event_views
from gradwire_server.runs.evidence import Evidence, gather, judge, measured_cost, ratio_on_wire
from gradwire_server.runs.history import differing_parameter
from gradwire_server.runs.machines import machines_view
from gradwire_server.runs.samples import samples_view
from gradwire_server.runs.saving import saving
from gradwire_server.runs.sources import RunSource, load_source
from gradwire_server.runs.status import status
from gradwire_server.runs.stragglers import waiting
from gradwire_server.runs.views import (
    CodecChoice,
    Measure,
    QualityView,
    RunSummary,
    RunView,
    StatusView,
    TrustView,
    VerdictView,
)
from gradwire_server.series.windows import window_buckets
from gradwire_server.verdict import reasons
from gradwire_server.verdict.formula import assumed_codec_cost, speedup
from gradwire_server.verdict.measures import measure, rank_steps

NUM_SPARKS = 24
# Windows that one mark of the sparkline sums up.
SPARK_WINDOWS = 8

MAX_BASELINE_CHOICES = 50


def run_view(
    connection: Connection, run: str, now: float, *, model: str | None = None, server_started_at: float = 0.0
) -> RunView | None:
    """Return everything on a run's page but the charts, or None when the run or the model is unknown.

    Args:
        connection: A reading connection; all is read in its one snapshot.
        run: Id of the run.
        now: Unix seconds.
        model: Name of the model; None for the first of the current attempt.
        server_started_at: `Services.started_at`: the server's own downtime is nobody's silence.
    """
    if (source := load_source(connection, run, model)) is None:
        return None
    evidence = gather(connection, source)
    summary = _summary(connection, source, evidence, now, server_started_at)
    newest = evidence.newest
    speed_on_wire = loop.wire_bytes_per_second(newest)
    rate, unit = loop.throughput(newest, source.attempt["world_size"])
    made = changes(connection, source)
    return RunView(
        summary=summary,
        model=source.name,
        attempt_number=source.attempt["number"],
        plan=source.plan,
        revision=source.model["revision"],
        epoch=source.model["epoch"],
        codec_since_step=source.model["since_step"],
        num_ranks_confirmed=source.model["num_ranks_confirmed"],
        loop=loop.loop(newest),
        step_seconds=loop.step_seconds(newest),
        communication_compute_ratio=loop.communication_compute_ratio(newest),
        throughput=rate,
        throughput_unit=unit,
        wire_bytes_per_second=speed_on_wire,
        bandwidth_use=loop.bandwidth_use(speed_on_wire, source),
        link_bytes_per_second=source.facts.link.nominal_bytes_per_second,
        link_note=source.facts.link.note,
        raw_share=loop.raw_share(newest),
        exposed_share=loop.exposed_share(newest, evidence.unknown_reason),
        quality=summary.quality,
        saving=saving(connection, source, evidence, summary.verdict, summary.status),
        finish_at=_finish_at(source, evidence, summary.status),
        last_change=made[0] if made else None,
        trust=_trust(connection, source, evidence, now, server_started_at),
        codecs=_codecs(source, evidence, summary.verdict),
        is_steered=source.facts.is_steered,
        backend=source.facts.backend,
        optimizer=source.facts.optimizer or "",
        device_name=source.facts.device_name,
        machines=machines_view(source, evidence),
        route=source.facts.routes.get(source.plan.codec),
        baseline_choices=_baseline_choices(connection, source),
        num_nonfinite=_num_nonfinite(connection, source),
        samples=samples_view(connection, source),
        waiting=waiting(connection, source, newest, evidence.unknown_reason),
        changes=made,
        events=event_views(connection, source.id),
    )


def run_summaries(
    connection: Connection, now: float, limit: int, *, before: str | None = None, server_started_at: float = 0.0
) -> list[RunSummary]:
    """Return the newest runs, newest first.

    Args:
        connection: A reading connection.
        now: Unix seconds.
        limit: Most runs to return.
        before: Id of a run; only older ones are returned. An unknown id returns none.
        server_started_at: As for `run_view`.

    Cost: a few bounded queries for each run.
    """
    statement = select(runs.c.id).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    if before is not None:
        created_at = select(runs.c.created_at).where(runs.c.id == before).scalar_subquery()
        is_older = or_(runs.c.created_at < created_at, and_(runs.c.created_at == created_at, runs.c.id < before))
        statement = statement.where(is_older)
    sources = (load_source(connection, run) for run in connection.scalars(statement).all())
    return [
        _summary(connection, source, gather(connection, source), now, server_started_at)
        for source in sources
        if source is not None
    ]


def _summary(
    connection: Connection, source: RunSource, evidence: Evidence, now: float, server_started_at: float
) -> RunSummary:
    return RunSummary(
        id=source.id,
        name=source.run["name"],
        project=source.run["project"],
        created_at=source.run["created_at"],
        status=status(source, now, server_started_at=server_started_at),
        codec=source.plan.codec,
        step=source.step,
        total_steps=source.attempt["total_steps"],
        world_size=source.attempt["world_size"],
        device=source.facts.device,
        verdict=judge(source, evidence),
        quality=_quality(connection, source, evidence),
        sparkline=_sparkline(connection, source, evidence),
    )


def _quality(connection: Connection, source: RunSource, evidence: Evidence) -> QualityView:
    compressed = evidence.compressed_total
    return quality(connection, source, compressed.first_step if compressed else 0)


def _sparkline(connection: Connection, source: RunSource, evidence: Evidence) -> tuple[float | None, ...]:
    if not evidence.stretches:
        return ()
    newest = max(evidence.stretches, key=lambda stretch: stretch.sums.last_step)
    num_steps = NUM_SPARKS * SPARK_WINDOWS * newest.steps_per_window
    parts = window_buckets(
        connection,
        source.id,
        source.name,
        first_step=max(0, newest.sums.last_step - num_steps + 1),
        max_buckets=NUM_SPARKS,
        attempt=source.attempt_id,
    )
    return tuple(part.exposed_transfer / part.known_training if part.known_training > 0 else None for part in parts)


def _finish_at(source: RunSource, evidence: Evidence, state: StatusView) -> Measure:
    """Extrapolate the newest steps, their pauses included, from the receipt of the newest one."""
    remaining, received_at = source.remaining_steps, evidence.received_at
    if state.name in ("finished", "failed", "interrupted"):
        return Measure(reason=reasons.IS_OVER)
    if state.name == "lost":
        return Measure(reason=reasons.IS_LOST)
    if remaining is None:
        return Measure(reason=reasons.NO_TOTAL)
    left = measure(evidence.newest, lambda block: block.step, rank_steps, scale=remaining)
    if left.value is None or received_at is None:
        return Measure(reason=reasons.NO_STEPS)
    return Measure(
        value=received_at + left.value,
        low=None if left.low is None else received_at + left.low,
        high=None if left.high is None else received_at + left.high,
    )


def _trust(
    connection: Connection, source: RunSource, evidence: Evidence, now: float, server_started_at: float
) -> TrustView:
    received_at = evidence.received_at
    return TrustView(
        age_seconds=None if received_at is None else max(0.0, now - received_at),
        num_nodes_reporting=sum(_is_reporting(node, now, server_started_at) for node in source.nodes),
        num_nodes=len(source.nodes),
        agent_cost=loop.agent_cost(evidence.newest),
        num_dropped=sum(node["num_dropped"] for node in source.nodes),
        differing_parameter=differing_parameter(connection, source.id, source.attempt_id, source.name),
        notes=source.facts.notes,
    )


def _is_reporting(node: RowMapping, now: float, server_started_at: float) -> bool:
    """Return whether a node is heard of; one that ended has said all it had to say."""
    silence = now - max(node["last_seen_at"], server_started_at)
    return node["ended_status"] is not None or silence <= limits.SILENT_AFTER_SECONDS


def _codecs(source: RunSource, evidence: Evidence, verdict: VerdictView) -> tuple[CodecChoice, ...]:
    """Return what the agent can run, uncompressed first, with what each should bring."""
    facts = source.facts
    choices = []
    for name, spec in CATALOGUE.items():
        if name != "none" and name not in facts.codecs and name not in facts.refused_codecs:
            continue
        cost = _codec_cost(evidence, name, verdict.share.value)
        share = verdict.share.value
        ratio = None if name == "none" else ratio_on_wire(source, name)
        is_told = ratio is not None and share is not None and cost.value is not None
        choices.append(
            CodecChoice(
                name=name,
                bits_per_element=spec.bits_per_element,
                parameters=tuple(asdict(parameter) for parameter in spec.parameters),
                extra_memory_bytes=0 if name == "none" else facts.codec_memory_bytes.get(name),
                expected_speedup=speedup(share or 0.0, ratio or 1.0, cost.value or 0.0) if is_told else None,
                codec_cost=cost,
                refusal=facts.refused_codecs.get(name, ""),
                safe_alternative=spec.safe_alternative if name in facts.refused_codecs else "",
            )
        )
    return tuple(choices)


def _codec_cost(evidence: Evidence, codec: str, share: float | None) -> Measure:
    if codec == "none":
        return Measure(value=0.0)
    measured = measured_cost(evidence, codec)
    if measured is not None:
        return Measure(value=measured)
    if share is None:
        return Measure(reason=reasons.NO_STEPS)
    return Measure(value=assumed_codec_cost(share), reason=reasons.ASSUMED)


def _baseline_choices(connection: Connection, source: RunSource) -> tuple[tuple[str, str], ...]:
    statement = (
        select(runs.c.id, runs.c.name)
        .where(runs.c.project == source.run["project"], runs.c.id != source.id)
        .order_by(runs.c.created_at.desc(), runs.c.id.desc())
        .limit(MAX_BASELINE_CHOICES)
    )
    return tuple((row[0], row[1]) for row in connection.execute(statement))


def _num_nonfinite(connection: Connection, source: RunSource) -> int:
    statement = select(func.count()).where(
        points.c.run == source.id,
        points.c.model == source.name,
        # Naming the kinds lets the partial index be used.
        points.c.kind.in_(("nan", "+inf", "-inf")),
    )
    return int(connection.execute(statement).scalar_one())
