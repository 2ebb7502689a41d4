"""Errors of the compression room.

CompressionError
├── PlanError             a plan is not acceptable here; nothing was changed
├── HookTakenError        the DDP model already has a communication hook
├── StateError            a saved state does not belong to this model
├── PlanMismatchError     ranks hold different plans; the one error that an observer may stop training with
└── ExchangeError         encoding, sending or decoding a bucket failed
"""


class CompressionError(RuntimeError):
    """Any error of this room."""


class PlanError(CompressionError, ValueError):
    """Raised when a plan is out of range or unsafe here; the one sentence says what is wanted instead."""


class HookTakenError(CompressionError):
    """Raised when the DDP model already has a communication hook; make a new DDP object without it."""


class StateError(CompressionError, ValueError):
    """Raised when a saved state does not fit the model's parameters; load it into the model it was saved from."""


class ExchangeError(CompressionError):
    """Raised when a bucket could not be averaged; backward shows it as a RuntimeError that names the codec."""


class PlanMismatchError(CompressionError):
    """Raised in backward when ranks hold different plans: their gradients would mix silently; restart the job."""
