"""Errors of the service.

GradwireServerError
├── ConfigError               settings that cannot be served
├── SchemaError               the database was written by a newer program
└── ServiceError              an answer to a request; it knows its HTTP status and code
    ├── InvalidError          422 invalid
    ├── UnauthorizedError     401 unauthorized
    ├── ForbiddenError        403 forbidden
    ├── NotFoundError         404 not_found
    ├── ConflictError         409 conflict
    ├── GapError              409 gap
    ├── ClosedError           409 closed
    ├── SlowError             408 timeout
    └── UnavailableError      503 unavailable

`gradwire_protocol.errors` join them at the border: MalformedError is 422 malformed, TooLargeError 413 too_large.
"""

from gradwire_protocol.errors import ProtocolError, TooLargeError
from gradwire_protocol.messages import Directive, ErrorDetail


class GradwireServerError(Exception):
    """Root of the tree."""


class ConfigError(GradwireServerError):
    """Raised at start when settings contradict each other or are unsafe; the message says which flag helps."""


class SchemaError(GradwireServerError):
    """Raised at start when the database's revision is newer than this program; install the newer program."""


class ServiceError(GradwireServerError):
    """An answer that is an error; `field` names the place in the request."""

    status = 500
    code = "internal"

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field

    def detail(self) -> ErrorDetail:
        """Return the error as it travels."""
        return ErrorDetail(code=self.code, message=str(self), field=self.field)


class InvalidError(ServiceError):
    """Raised when a request is well-formed and cannot be accepted; change the named field."""

    status = 422
    code = "invalid"


class UnauthorizedError(ServiceError):
    """Raised when nobody is known to be asking; log in, or send a token."""

    status = 401
    code = "unauthorized"


class ForbiddenError(ServiceError):
    """Raised when who asks may not; use a token or an account of the named kind."""

    status = 403
    code = "forbidden"


class NotFoundError(ServiceError):
    """Raised when the named thing does not exist."""

    status = 404
    code = "not_found"


class ConflictError(ServiceError):
    """Raised when a change was made against a state that is gone; read `current`, then decide again."""

    status = 409
    code = "conflict"

    def __init__(self, message: str, *, wanted: int, current: Directive | None) -> None:
        super().__init__(message, field="revision")
        self.wanted = wanted
        self.current = current

    def detail(self) -> ErrorDetail:
        """Return the error with the present revision and the change that made it."""
        detail = super().detail()
        detail.wanted, detail.current = self.wanted, self.current
        return detail


class GapError(ServiceError):
    """Raised when batches of a stream are missing; send on from `wanted`."""

    status = 409
    code = "gap"

    def __init__(self, message: str, *, wanted: int) -> None:
        super().__init__(message, field="number")
        self.wanted = wanted

    def detail(self) -> ErrorDetail:
        """Return the error with the number that the stream must go on with."""
        detail = super().detail()
        detail.wanted = self.wanted
        return detail


class ClosedError(ServiceError):
    """Raised when a run takes no changes: it ended, or nobody there answers."""

    status = 409
    code = "closed"


class SlowError(ServiceError):
    """Raised when a request's body does not arrive in time."""

    status = 408
    code = "timeout"


class UnavailableError(ServiceError):
    """Raised when the database is locked, full or gone, or the server stops; try again after a second."""

    status = 503
    code = "unavailable"


def protocol_detail(error: ProtocolError) -> tuple[int, ErrorDetail]:
    """Return status and detail of an error of the protocol room."""
    if isinstance(error, TooLargeError):
        return 413, ErrorDetail(code="too_large", message=str(error), field=error.field, limit=error.limit)
    return 422, ErrorDetail(code="malformed", message=str(error), field=error.field)
