"""Changes as pages and API make them: one write, then everybody who waits is woken."""

from collections.abc import Callable

from gradwire_protocol.messages import ChangeAnswer, Directive, ReasonRequest, RollbackRequest, SetRequest
from sqlalchemy import Connection

from gradwire_server.directives.requests import Asking, add_reason, request_rollback, request_set
from gradwire_server.services import Services


async def set_plan(services: Services, run: str, request: SetRequest, author: str) -> ChangeAnswer:
    """Ask for a plan.

    Raises:
        ServiceError, ProtocolError: As `request_set`.
    """
    return await _change(services, run, author, lambda connection, by: request_set(connection, run, request, by))


async def roll_back(services: Services, run: str, request: RollbackRequest, author: str) -> ChangeAnswer:
    """Ask for uncompressed training.

    Raises:
        ServiceError, ProtocolError: As `request_rollback`.
    """
    return await _change(
        services, run, author, lambda connection, by: request_rollback(connection, run, request, by)
    )


async def give_reason(
    services: Services, run: str, revision: int, request: ReasonRequest, author: str
) -> Directive:
    """Give the reason of a change after it was made.

    Raises:
        ServiceError, ProtocolError: As `add_reason`.
    """
    by = _asking(services, author)
    directive = await services.database.write(lambda connection: add_reason(connection, run, revision, request, by))
    services.hub.publish(run, "event")
    return directive


async def _change(
    services: Services, run: str, author: str, change: Callable[[Connection, Asking], ChangeAnswer]
) -> ChangeAnswer:
    by = _asking(services, author)
    answer = await services.database.write(lambda connection: change(connection, by))
    if answer.is_new:
        services.hub.publish(run, "directive", "event")
    return answer


def _asking(services: Services, author: str) -> Asking:
    return Asking(author=author, now=services.now(), server_started_at=services.started_at)
