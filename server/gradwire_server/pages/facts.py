"""A fact of a page."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fact:
    """A name and its value, with a note in small type."""

    name: str
    value: str
    note: str = ""
    # The field's own term where the page says it in other words; shown as a tooltip.
    term: str = ""
