"""GET /metrics: in memory only, so that it answers while the database is locked."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import Response
from gradwire_protocol import routes
from prometheus_client.exposition import choose_encoder

from gradwire_server.access.actors import reader
from gradwire_server.metrics.collector import RunCollector
from gradwire_server.services import services_of

router = APIRouter(tags=["machines"])


@router.get(routes.METRICS, dependencies=[Depends(reader)], response_class=Response)
def get_metrics(request: Request, accept: Annotated[str, Header()] = "") -> Response:
    """Counters of live runs for Prometheus, as OpenMetrics where the scraper asks for it."""
    services = services_of(request)
    # A collector serves one scrape: no registry is shared, the library's global one least of all.
    encode, content_type = choose_encoder(accept)
    return Response(encode(RunCollector(services.counters, services.now)), media_type=content_type)
