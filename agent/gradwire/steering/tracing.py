"""Tracing: which steps are traced, and of which exchange a pulse compares the ranks."""

from collections.abc import Sequence

from gradwire_protocol.records import Event

from gradwire.timing.cost import OwnCost, stride_event
from gradwire.timing.recorder import Recorder
from gradwire.timing.trace import SyncTrace


class Tracing:
    """One model's; used by the training thread, which reads no stamp here: that might wait for the device."""

    def __init__(self, recorder: Recorder, cost: OwnCost) -> None:
        self._recorder = recorder
        self._cost = cost
        # The newest traced exchange that is over.
        self.newest: SyncTrace | None = None
        self._asked: SyncTrace | None = None
        # The exchange that this rank spoke of in the pulse on its way, 0 for none.
        self._spoken = 0
        # One in so many steps is traced, the same ones on all ranks.
        self.stride = 1
        self._was_settling = False
        # The longest that was told of.
        self._told = 1

    @property
    def wanted_stride(self) -> int:
        """What this rank can afford."""
        return self._cost.stride

    @property
    def economy(self) -> int:
        """How many times as rare this rank wants all measuring to be."""
        return self._cost.economy

    def is_due(self, step: int, *, is_settling: bool, is_steered: bool) -> bool:
        """Say whether `step` is to be traced; ranks that no pulse compares each go by their own stride.

        Steps that settle are, and the first one after them: a short stretch, as a check window's, needs one step
        that stands for it.
        """
        stride = self.stride if is_steered else self._cost.stride
        is_first, self._was_settling = self._was_settling and not is_settling, is_settling
        return is_settling or is_first or step % stride == 0

    def agree(self, stride: int, step: int) -> Event | None:
        """Take the stride that the ranks agreed on; returns what to tell: how rare traces had to become."""
        self.stride = stride
        if stride <= max(self._told, self._cost.usual_stride):
            return None
        self._told = stride
        return stride_event(step, stride)

    def end(self, sync: SyncTrace | None) -> None:
        """Note that an exchange is over; the newest traced one is the next to be compared."""
        if sync is not None and sync.is_traced:
            self.newest = sync

    def compared(self) -> tuple[int, Sequence[float]]:
        """Return which exchange this pulse speaks of, 0 for none, and its buckets' own seconds, empty if unknown.

        It is the one that the pulse before had the recorder read: all ranks speak of the same.
        """
        asked = self._asked
        if self.newest is not None and self.newest is not asked:
            self._asked = self.newest
            self._recorder.ask(self.newest)
        self._spoken = asked.number if asked is not None else 0
        return self._spoken, self._recorder.durations_of(asked) if asked is not None else ()

    def over(self, agreed: int, last: int) -> int:
        """Return up to which exchange the recorder has all it will get to know.

        Ranks whose steps are not counted alike, since one of them skipped some, trace different ones: they agree on
        no exchange, compare none, and their windows end all the same.

        Args:
            agreed: The exchange that all ranks spoke of, 0 if they differed.
            last: The last complete one.
        """
        return agreed if agreed or not self._spoken else last
