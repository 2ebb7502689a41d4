"""What all ranks decided, or a guard that only reports would have, as records."""

import time
from typing import Literal

from gradwire_protocol.messages import Directive
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import Event, Switched

Cause = Literal["directive", "local", "guard"]


def switched(
    plan: PlanSpec,
    cause: Cause,
    reason: str,
    norm: float | None,
    directive: Directive | None,
    *,
    step: int,
    epoch: int,
    num_ranks: int,
) -> Switched:
    """Return the record of a switch at `step` that began `epoch`; without a directive it is a rollback."""
    return Switched(
        at=time.time(),
        step=step,
        epoch=epoch,
        plan=plan,
        num_ranks=num_ranks,
        cause=cause,
        revision=directive.revision if directive is not None else None,
        is_rollback=directive is None or directive.kind == "rollback",
        reason=reason,
        residual_norm_dropped=norm,
    )


def would_roll_back(reason: str, step: int) -> Event:
    """Return the line for the run's history of a guard that only reports."""
    return Event(
        at=time.time(),
        step=step,
        kind="would_roll_back",
        message=f"automatic rollback would have acted, and only reports: {reason}",
        level="warning",
        data={"reason": reason},
    )
