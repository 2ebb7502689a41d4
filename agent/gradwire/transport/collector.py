"""The collector: everything the ranks of a node report becomes one stream's records in the spool."""

import math
import time
from collections.abc import Callable, Sequence

import msgspec
from gradwire_protocol.errors import ProtocolError
from gradwire_protocol.records import Event, Record, StepWindow

from gradwire.transport import batches
from gradwire.transport.local import FromRank, LossPart, Parcel
from gradwire.transport.merging import LossMerger, WindowMerger
from gradwire.transport.notices import Notices
from gradwire.transport.spool import Spool

# Losses of all steps of a second share one record.
_LOSS_INTERVAL_SECONDS = 1.0


class Collector:
    """Merges what ranks report and appends it to the spool; used by one thread."""

    def __init__(
        self, spool: Spool, local_ranks: Sequence[int], wake: Callable[[bool], None], notices: Notices
    ) -> None:
        """Take the spool to append to and the stream's `wake`, called with whether the record is urgent."""
        self._spool = spool
        self._wake = wake
        self._notices = notices
        self._windows = WindowMerger(local_ranks)
        self._losses = LossMerger(local_ranks)
        self._loss_due_at = -math.inf
        self._num_dropped_before = 0
        self.last_step = 0

    def take(self, rank: int, message: FromRank, now: float) -> None:
        """Take one message of a rank; `now` is `time.monotonic` seconds."""
        if isinstance(message, LossPart):
            self._losses.add(rank, message.steps, message.values, message.weights, now)
        elif isinstance(message, Parcel):
            self._take_record(rank, message, now)
        else:
            self._spool.count_dropped(message.weight)

    def tick(self, now: float) -> None:
        """Append what has waited long enough; everything for `now` = inf."""
        for window in self._windows.take_due(now):
            self.append(window)
        if now >= self._loss_due_at:
            losses, events = self._losses.take(now)
            if losses is not None:
                self._loss_due_at = now + _LOSS_INTERVAL_SECONDS if math.isfinite(now) else now
                self.append(losses)
            for event in events:
                self.append(event, urgent=True)

    @property
    def next_due_at(self) -> float:
        """When `tick` has something to do next, `time.monotonic` seconds; inf for never."""
        losses = self._loss_due_at if self._losses.has_ready else self._losses.next_due_at
        return min(self._windows.next_due_at, losses)

    def append(self, record: Record, *, urgent: bool = False) -> None:
        """Cut a record to the limits, append it to the spool and tell the stream."""
        is_urgent = urgent or batches.is_urgent(record)
        for part in batches.fit(record):
            self._append_one(part)
        self._wake(is_urgent)

    def _take_record(self, rank: int, parcel: Parcel, now: float) -> None:
        record = parcel.record
        if not isinstance(record, StepWindow):
            self.append(record, urgent=parcel.urgent)
            return
        self.last_step = max(self.last_step, record.last_step)
        for window in self._windows.add(rank, record, now):
            self.append(window, urgent=parcel.urgent)

    def _append_one(self, record: Record) -> None:
        weight = batches.weigh(record)
        try:
            body = batches.encode_record(record)
        except (ProtocolError, msgspec.MsgspecError) as error:
            self._spool.count_dropped(weight)
            name = type(record).__name__
            self._notices.say(f"unfit {name}", f"a {name} record is not acceptable and was dropped: {error}")
            return
        if not self._spool.append(body, weight, may_use_reserve=batches.is_urgent(record)):
            self._notices.say(
                "dropping",
                f"the spool folder {self._spool.folder} takes no more (full, or over "
                f"{self._spool.cap_bytes} bytes): measurements are dropped and counted; training goes on",
            )
        elif not batches.is_urgent(record):
            self._tell_drops()

    def _tell_drops(self) -> None:
        """Write down how much was lost, once the spool takes measurements again."""
        num_dropped = self._spool.num_dropped - self._num_dropped_before
        if num_dropped == 0:
            return
        self._num_dropped_before = self._spool.num_dropped
        message = f"{num_dropped} measurements were dropped because they came faster than they could be kept"
        self._notices.take_back("dropping", message)
        event = Event(
            at=time.time(),
            step=self.last_step,
            kind="data_dropped",
            message=message,
            level="warning",
            data={"num_dropped": num_dropped},
        )
        self._spool.append(batches.encode_record(event), may_use_reserve=True)
