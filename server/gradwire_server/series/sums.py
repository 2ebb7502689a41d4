"""Sums over steps and ranks, the value that every ratio of a page is formed from."""

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import fields


class StepSums(Struct, frozen=True, kw_only=True):
    """Sums over steps and the ranks of all nodes; seconds unless named otherwise, ratios are formed last.

    The split of exposed communication is summed where it is known, and `known_step` with `known_pause` are the
    seconds of just those steps, so that a share never divides by time whose transfer is unknown.
    """

    first_step: int
    last_step: int
    num_steps: int = 0
    num_rank_steps: int = 0
    step: float = 0.0
    pause: float = 0.0
    data_wait: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    exposed_communication: float = 0.0
    exposed_codec: float = 0.0
    optimizer: float = 0.0
    other: float = 0.0
    overlapped: float = 0.0
    encode: float = 0.0
    decode: float = 0.0
    agent: float = 0.0
    exposed_transfer: float = 0.0
    straggler_wait: float = 0.0
    known_step: float = 0.0
    known_pause: float = 0.0
    known_rank_steps: int = 0
    step_min: float = 0.0
    step_max: float = 0.0
    logical_bytes: int = 0
    wire_bytes: int = 0
    samples: int = 0
    tokens: int = 0

    @property
    def training(self) -> float:
        """Seconds of training: steps without evaluation and checkpoint pauses."""
        return self.step - self.pause

    @property
    def known_training(self) -> float:
        """Seconds of training of the steps whose transfer is known."""
        return self.known_step - self.known_pause

    @property
    def communication(self) -> float:
        """Seconds of communication, overlapped or not, waiting included."""
        return self.exposed_communication + self.overlapped

    @property
    def computation(self) -> float:
        """Seconds of forward and backward."""
        return self.forward + self.backward


SUMMED = tuple(
    field.name
    for field in fields(StepSums)
    if field.name not in ("first_step", "last_step", "step_min", "step_max")
)


def merge(parts: Iterable[StepSums]) -> StepSums | None:
    """Add up sums of different steps; None when there are none."""
    parts = list(parts)
    if not parts:
        return None
    return StepSums(
        first_step=min(part.first_step for part in parts),
        last_step=max(part.last_step for part in parts),
        step_min=min(part.step_min for part in parts),
        step_max=max(part.step_max for part in parts),
        **{name: sum(getattr(part, name) for part in parts) for name in SUMMED},
    )
