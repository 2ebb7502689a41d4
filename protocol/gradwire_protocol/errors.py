"""Errors of the protocol room.

ProtocolError
├── MalformedError        a message cannot be decoded, or breaks a rule
└── TooLargeError         a message is over a limit of `limits`
"""


class ProtocolError(ValueError):
    """A message is not acceptable; `field` names the place and the text says what is wanted."""

    def __init__(self, message: str, *, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class MalformedError(ProtocolError):
    """Raised when a message cannot be decoded or breaks a rule; fix the named field and send again."""


class TooLargeError(ProtocolError):
    """Raised when a message is over a limit; split it and send the parts."""

    def __init__(self, message: str, *, field: str = "", limit: int) -> None:
        super().__init__(message, field=field)
        self.limit = limit
