"""What the template of the list of runs is filled with."""

from collections.abc import Sequence
from dataclasses import dataclass

from gradwire_server.pages.sentences import quality, trust, verdict
from gradwire_server.pages.wording import Wording
from gradwire_server.runs.views import RunSummary

# The sparkline's box in its own units; its top is this share of a step, so that runs compare.
SPARK_WIDTH, SPARK_HEIGHT, SPARK_TOP = 100.0, 24.0, 0.8


@dataclass(frozen=True)
class Row:
    """One run of the list."""

    id: str
    name: str
    position: str
    status_name: str
    status: str
    status_detail: str
    verdict_kind: str
    verdict: str
    share: str
    # Points of one polyline for every stretch of known shares.
    sparks: tuple[str, ...]
    # Height of the line between worth it and not worth it.
    line_y: float
    compression: str
    speed: str
    quality: str


def rows(words: Wording, summaries: Sequence[RunSummary]) -> list[Row]:
    """Return the rows of the list, in the order given."""
    return [_row(words, summary) for summary in summaries]


def _row(words: Wording, summary: RunSummary) -> Row:
    share, speedup = summary.verdict.share.value, summary.verdict.speedup.value
    return Row(
        id=summary.id,
        name=summary.name,
        position=trust.position(words, summary),
        status_name=summary.status.name,
        status=trust.short_status(words, summary),
        status_detail=summary.status.detail,
        verdict_kind=summary.verdict.kind,
        verdict=verdict.short_verdict(words, summary.verdict),
        share="–" if share is None else words.percent(share, 1 if share < 0.0095 else 0),
        sparks=spark_points(summary.sparkline),
        line_y=_height(summary.verdict.line),
        compression=words.say("Uncompressed") if summary.codec == "none" else summary.codec,
        speed="–" if speedup is None else words.times(speedup),
        quality=quality.state(words, summary.quality),
    )


def spark_points(shares: Sequence[float | None]) -> tuple[str, ...]:
    """Return polylines of the shares, broken where one is unknown."""
    if len(shares) < 2:
        return ()
    spacing = SPARK_WIDTH / (len(shares) - 1)
    stretches: list[list[str]] = [[]]
    for index, share in enumerate(shares):
        if share is None:
            stretches.append([])
        else:
            stretches[-1].append(f"{index * spacing:.1f},{_height(share):.1f}")
    return tuple(" ".join(points) for points in stretches if len(points) > 1)


def _height(share: float) -> float:
    """Return the distance from the top of the sparkline's box; one unit of air above and below."""
    return round(1 + (SPARK_HEIGHT - 2) * (1 - min(share, SPARK_TOP) / SPARK_TOP), 1)
