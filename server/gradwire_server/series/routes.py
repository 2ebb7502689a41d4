"""Series over HTTP."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from gradwire_protocol import routes
from gradwire_protocol.limits import MAX_INTEGER
from msgspec import Struct

from gradwire_server.access.actors import reader
from gradwire_server.answers import json_answer
from gradwire_server.errors import NotFoundError
from gradwire_server.runs.sources import load_source
from gradwire_server.schema import describe
from gradwire_server.series.buckets import MAX_BUCKETS
from gradwire_server.series.points import PointBucket, point_buckets, point_names
from gradwire_server.series.sums import StepSums
from gradwire_server.series.windows import window_buckets
from gradwire_server.services import services_of

router = APIRouter(tags=["series"])

# A program may want finer buckets than a chart shows.
MAX_ASKED_BUCKETS = 5000

Step = Annotated[int | None, Query(ge=0, le=MAX_INTEGER)]


class Series(Struct, frozen=True, kw_only=True):
    """A user metric, or without a name the sums of step windows, in buckets ascending by step."""

    run: str
    model: str
    # Names of the model's user metrics.
    names: list[str]
    name: str | None = None
    points: list[PointBucket] | None = None
    steps: list[StepSums] | None = None


@router.get(routes.SERIES, dependencies=[Depends(reader)], openapi_extra=describe(None, {200: Series}))
def get_series(
    request: Request,
    run: str,
    name: str | None = None,
    model: str | None = None,
    attempt: str | None = None,
    first_step: Step = None,
    last_step: Step = None,
    max_buckets: Annotated[int, Query(ge=1, le=MAX_ASKED_BUCKETS)] = MAX_BUCKETS,
) -> Response:
    """Return a user metric by `name`, or the sums of step windows, in at most `max_buckets` buckets.

    The default line takes each step from the newest attempt that has it; `attempt` reads one attempt alone. Values
    that are not finite are counted in `num_nonfinite` and enter nothing else.
    """
    with services_of(request).database.read() as connection:
        source = load_source(connection, run, model)
        if source is None:
            raise NotFoundError(f"run {run[:60]!r} or its model does not exist", field="run")
        names = point_names(connection, run, source.name)
        if name is None:
            steps = window_buckets(
                connection,
                run,
                source.name,
                first_step=first_step,
                last_step=last_step,
                max_buckets=max_buckets,
                attempt=attempt,
            )
            return json_answer(Series(run=run, model=source.name, names=names, steps=steps))
        points = point_buckets(
            connection,
            run,
            source.name,
            name,
            first_step=first_step,
            last_step=last_step,
            max_buckets=max_buckets,
            attempt=attempt,
        )
    if not points and name not in names:
        raise NotFoundError(f"the run has no metric {name[:60]!r}", field="name")
    return json_answer(Series(run=run, model=source.name, names=names, name=name, points=points))
