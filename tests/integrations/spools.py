"""What a session without a server left in its spool, read back by tests of the integrations."""

from pathlib import Path
from typing import Any

from gradwire.transport import place
from gradwire_protocol.records import AttemptEnded, AttemptStarted, Points, StepWindow
from one_node import spooled


class Left:
    """Everything of one attempt on this machine."""

    def __init__(self, root: Path) -> None:
        ((folder, self.facts),) = place.find_streams(root)
        self.records: list[Any] = spooled(folder)

    @property
    def started(self) -> AttemptStarted:
        (started,) = [record for record in self.records if isinstance(record, AttemptStarted)]
        return started

    @property
    def ended(self) -> AttemptEnded:
        # Every rank that fails says so at once, and all say the same.
        ended, *others = [record for record in self.records if isinstance(record, AttemptEnded)]
        assert all((other.status, other.exception) == (ended.status, ended.exception) for other in others)
        return ended

    @property
    def windows(self) -> list[StepWindow]:
        return [record for record in self.records if isinstance(record, StepWindow)]

    def values(self, name: str) -> dict[int, float | None]:
        """Return a metric's values by step."""
        points = [record for record in self.records if isinstance(record, Points) and record.name == name]
        return {step: value for one in points for step, value in zip(one.steps, one.values, strict=True)}

    def codecs(self) -> set[str]:
        """Return the codecs in use, and check that those that compress did."""
        for window in self.windows:
            assert window.codec == "none" or window.wire_bytes < window.logical_bytes
        return {window.codec for window in self.windows}
