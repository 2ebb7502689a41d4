"""Figures over HTTP, as Plotly draws them."""

from collections.abc import Sequence
from typing import Annotated

import plotly.graph_objects as go
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from gradwire_protocol import routes
from gradwire_protocol.limits import MAX_INTEGER
from sqlalchemy import Connection

from gradwire_server.access.actors import reader
from gradwire_server.answers import json_answer
from gradwire_server.errors import NotFoundError
from gradwire_server.figures.drawing import MAX_MARKERS, Say, add_checks
from gradwire_server.figures.metric import metric
from gradwire_server.figures.steps import breakdown, bytes_sent, throughput
from gradwire_server.figures.themes import Theme
from gradwire_server.ingest.samples import GRADIENT_MATCH
from gradwire_server.pages.rendering import wording_of
from gradwire_server.quality.reading import LOSS, baseline_of
from gradwire_server.runs.sources import RunSource, load_source
from gradwire_server.schema import describe
from gradwire_server.series.checks import check_steps
from gradwire_server.series.points import PointBucket, point_buckets
from gradwire_server.series.windows import Stretch, stretches, window_buckets
from gradwire_server.services import services_of

router = APIRouter(tags=["series"])

# By their names in the address.
MATCH = "match"
FIGURES = ("steps", "throughput", "bytes", LOSS, MATCH)

Step = Annotated[int | None, Query(ge=0, le=MAX_INTEGER)]


@router.get(routes.FIGURES, dependencies=[Depends(reader)], openapi_extra=describe(None, {200: None}))
def get_figure(
    request: Request,
    run: str,
    figure: str,
    theme: Theme = "light",
    model: str | None = None,
    first_step: Step = None,
    last_step: Step = None,
) -> Response:
    """Return a figure (steps, throughput, bytes, loss or match) as Plotly's JSON, in the reader's language.

    At most 300 buckets, whatever the run's length; `language` is en or zh.
    """
    if figure not in FIGURES:
        raise NotFoundError(f"figure {figure[:60]!r} is unknown; known are {', '.join(FIGURES)}", field="figure")
    say = wording_of(request).say
    with services_of(request).database.read() as connection:
        source = load_source(connection, run, model)
        if source is None:
            raise NotFoundError(f"run {run[:60]!r} or its model does not exist", field="run")
        drawn = draw(connection, source, figure, theme, say, first_step=first_step, last_step=last_step)
        add_checks(drawn, theme, check_steps(connection, source.id, source.name, limit=MAX_MARKERS))
    return json_answer(drawn.to_plotly_json())


def draw(
    connection: Connection,
    source: RunSource,
    figure: str,
    theme: Theme,
    say: Say,
    *,
    first_step: int | None = None,
    last_step: int | None = None,
) -> go.Figure:
    """Return one of `FIGURES` of a run, for its page, an export or a report."""
    found = stretches(connection, source.id, source.name)
    if figure == LOSS:
        return _draw_loss(connection, source, found, theme, say, first_step, last_step)
    if figure == MATCH:
        found_points = point_buckets(
            connection, source.id, source.name, GRADIENT_MATCH, first_step=first_step, last_step=last_step
        )
        return metric(found_points, None, found, theme, say, name=say("Gradient match"))
    steps = window_buckets(connection, source.id, source.name, first_step=first_step, last_step=last_step)
    if figure == "steps":
        return breakdown(steps, found, theme, say, device=source.facts.device)
    return (throughput if figure == "throughput" else bytes_sent)(steps, found, theme, say)


def _draw_loss(
    connection: Connection,
    source: RunSource,
    found: Sequence[Stretch],
    theme: Theme,
    say: Say,
    first_step: int | None,
    last_step: int | None,
) -> go.Figure:
    def read(of: RunSource, last: int | None) -> list[PointBucket]:
        return point_buckets(connection, of.id, of.name, LOSS, first_step=first_step, last_step=last)

    points = read(source, last_step)
    chosen = baseline_of(connection, source)
    baseline = None
    if chosen is not None and points:
        # The baseline is drawn as far as this run has come.
        baseline = (str(chosen.run["name"]), read(chosen, points[-1].last_step))
    return metric(points, baseline, found, theme, say, name=LOSS)
