"""A hold: for some steps everything is averaged exactly, and what the codec owes stays as it is."""


class Hold:
    """Counts the synchronised steps of a hold; begun in the hook of bucket 0, on all ranks at the same step."""

    def __init__(self) -> None:
        # The last synchronised step of the hold.
        self._last = 0

    def begin(self, sync: int, num_steps: int) -> None:
        """Hold from synchronised step `sync` on, that one included."""
        self._last = sync + num_steps - 1

    def end(self) -> None:
        """Hold no longer, from this very step on."""
        self._last = 0

    def covers(self, sync: int) -> bool:
        """Return whether synchronised step `sync` is held."""
        return 0 < sync <= self._last
