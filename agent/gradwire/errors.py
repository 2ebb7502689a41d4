"""Errors of the agent room.

GradwireError
├── SettingError        an argument or environment variable of `attach` is not acceptable
├── AttachError         the model cannot be attached to
│   └── UnsteerableError  another framework exchanges its gradients
├── SpoolError          a spool folder cannot be used
│   └── SpoolBusyError  another live process holds it
├── UnreachableError    the server gave no answer
└── AnswerError         the server answered with an error

After `attach` returned none of them reaches training code; the last three stay inside the agent's threads and end
up as sentences of the `gradwire` command. Ranks that hold different plans stop with the compression room's
PlanMismatchError, from inside backward.
"""

from gradwire_protocol.messages import ErrorDetail


class GradwireError(Exception):
    """Base of everything the agent raises on purpose."""


class SettingError(GradwireError, ValueError):
    """Raised when an argument or environment variable is not acceptable; the text names it and what is wanted."""


class AttachError(GradwireError, RuntimeError):
    """Raised when a model cannot be attached to; the text says what to change."""


class UnsteerableError(AttachError):
    """Raised when another framework exchanges the model's gradients; names it, and what to do instead."""


class SpoolError(GradwireError, OSError):
    """Raised when a spool folder cannot be used; names the folder, the reason and the setting to change."""


class SpoolBusyError(SpoolError):
    """Raised when another live process holds the spool folder; it delivers what is in there itself."""


class UnreachableError(GradwireError):
    """Raised when the server gave no answer: refused, reset, too slow or not HTTP; trying again may help."""


class AnswerError(GradwireError):
    """Raised when the server answered with an error; `status` is the HTTP status and `detail` says what and why."""

    def __init__(self, status: int, detail: ErrorDetail) -> None:
        super().__init__(detail.message)
        self.status = status
        self.detail = detail
