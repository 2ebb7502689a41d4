"""Reporting of a node's other ranks: everything goes to the node's first rank over its Unix socket."""

import contextlib
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import msgspec
from gradwire_protocol.records import AttemptEnded, Record, Result

from gradwire.transport.batches import is_urgent, weigh
from gradwire.transport.inbox import Inbox
from gradwire.transport.local import FromRank, Goodbye, Hello, Inlet, LossPart, Lost, Parcel, Taken, pack
from gradwire.transport.notices import Notices
from gradwire.transport.reporter import DeliverySummary

_SEND_SECONDS = 5.0
# Between attempts to connect, seconds: at first, and at most.
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 0.5


class SiblingReporter:
    """Reporter of a rank that is not its node's first."""

    def __init__(self, rank: int, socket_paths: Sequence[Path]) -> None:
        """Start the thread that connects as soon as the node's first rank listens at one of `socket_paths`."""
        self._process = os.getpid()
        self._thread = _Carrier(rank, socket_paths)
        self._is_closing = False
        self._summary = DeliverySummary()
        self._thread.start()

    def report(self, record: Record, *, urgent: bool = False) -> None:
        """See `Reporter.report`."""
        if os.getpid() == self._process:
            parcel = Parcel(record, urgent or is_urgent(record))
            self._thread.inbox.put(parcel, weigh(record), may_use_reserve=is_urgent(record))

    def report_loss(self, steps: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> None:
        """See `Reporter.report_loss`."""
        if os.getpid() == self._process:
            self._thread.inbox.put(LossPart(list(steps), list(values), list(weights)), len(steps))

    def announce(self, result: Result) -> None:
        """Do nothing: operators speak with the node's first rank, which hears the same results."""

    def close(self, ended: AttemptEnded | None, timeout_seconds: float) -> DeliverySummary:
        """See `Reporter.close`; returns when the node's first rank has everything."""
        if os.getpid() != self._process:
            return DeliverySummary()
        if not self._is_closing:
            self._is_closing = True
            self._summary = self._thread.finish(ended, time.monotonic() + timeout_seconds)
        return self._summary


class _Carrier(threading.Thread):
    """Carries messages from the inbox to the node's socket."""

    def __init__(self, rank: int, socket_paths: Sequence[Path]) -> None:
        super().__init__(name="gradwire-sibling", daemon=True)
        self._rank = rank
        self._paths = socket_paths
        self._something = threading.Event()
        self._notices = Notices()
        self._ended: AttemptEnded | None = None
        # `time.monotonic` seconds; set by `finish`.
        self._deadline: float | None = None
        # Taken from the inbox and not sent yet.
        self._unsent: deque[tuple[FromRank, int]] = deque()
        self._num_sent = 0
        self._num_dropped = 0
        self._is_taken = False
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self.inbox: Inbox[FromRank] = Inbox(self._something.set)

    def finish(self, ended: AttemptEnded | None, deadline: float) -> DeliverySummary:
        self._ended = ended
        self._deadline = deadline
        self._something.set()
        self.join(max(0.0, deadline - time.monotonic()))
        left = [*self._unsent, *self.inbox.take_all()]
        num_dropped = self._num_dropped + self.inbox.take_num_dropped() + sum(weight for _, weight in left)
        if not self._is_taken:
            self._notices.say("goodbye", f"rank {self._rank} could not hand everything to its node's first rank")
        return DeliverySummary(num_delivered=self._num_sent, num_dropped=num_dropped)

    def run(self) -> None:
        while not self._is_over():
            connection = self._connect()
            if connection is None:
                self._pause()
                continue
            try:
                self._carry(connection)
            except (OSError, msgspec.MsgspecError):
                # The node's first rank is gone or restarts its thread; what was not sent is sent again.
                self._pause()
            except Exception as error:
                self._notices.say("sibling", "handing over to the node's first rank met an error", error=error)
                self._pause()
            finally:
                connection.close()

    def _is_over(self) -> bool:
        return self._is_taken or (self._deadline is not None and time.monotonic() >= self._deadline)

    def _pause(self) -> None:
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _connect(self) -> socket.socket | None:
        for path in self._paths:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(_SEND_SECONDS)
            with contextlib.suppress(OSError):
                connection.connect(str(path))
                connection.sendall(pack(Hello(self._rank)))
                self._pause_seconds = _FIRST_PAUSE_SECONDS
                return connection
            connection.close()
        return None

    def _carry(self, connection: socket.socket) -> None:
        while not self._is_over():
            self._something.clear()
            is_last = self._deadline is not None
            self._unsent.extend(self.inbox.take_all())
            num_dropped = self.inbox.take_num_dropped()
            if num_dropped:
                self._num_dropped += num_dropped
                self._unsent.append((Lost(num_dropped), 0))
            while self._unsent:
                message, weight = self._unsent[0]
                connection.sendall(pack(message))
                self._unsent.popleft()
                self._num_sent += weight
            if is_last:
                self._say_goodbye(connection)
                return
            self._something.wait()

    def _say_goodbye(self, connection: socket.socket) -> None:
        assert self._deadline is not None
        connection.settimeout(max(0.05, self._deadline - time.monotonic()))
        connection.sendall(pack(Goodbye(self._ended)))
        inlet = Inlet()
        while not self._is_taken:
            data = connection.recv(4096)
            if not data:
                raise ConnectionResetError
            self._is_taken = any(isinstance(reply, Taken) for reply in inlet.replies(data))
