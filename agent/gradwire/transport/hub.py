"""The hub: the one thread of a node's first rank that hears this rank, its siblings and the local operator."""

import contextlib
import math
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from gradwire_protocol.records import AttemptEnded, Event, Refused, Result, Switched

from gradwire.transport.collector import Collector
from gradwire.transport.desk import Desk
from gradwire.transport.inbox import Inbox
from gradwire.transport.local import (
    Command,
    FromRank,
    Goodbye,
    Hello,
    Inlet,
    Lost,
    Outcome,
    Parcel,
    Reply,
    Taken,
    is_same_user,
    pack,
)
from gradwire.transport.notices import Notices

_READ_BYTES = 256 * 1024
# Longest sleep: what was put without a wake-up, if ever, is seen after it.
_LONGEST_SLEEP_SECONDS = 1.0
_ERROR_PAUSE_SECONDS = 0.1
_LAST_READ_SECONDS = 0.5
# A rank that failed may take the node's first rank with it; its end is told before it may go, within this time.
_HOLD_SECONDS = 1.0
_HELD_LOOK_SECONDS = 0.02
_SEVERITY = {"finished": 0, "interrupted": 1, "failed": 2}


class _Peer:
    """One connection: a sibling rank after its `Hello`, otherwise an operator's command."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.inlet = Inlet()
        self.rank: int | None = None
        self.awaits_result = False


class Hub(threading.Thread):
    """Moves records from inbox and sockets to the collector, and answers commands, until `finish`."""

    def __init__(
        self,
        *,
        rank: int,
        local_ranks: Sequence[int],
        socket_paths: Sequence[Path],
        collector: Collector,
        desk: Desk,
        notices: Notices,
        is_told: Callable[[], bool] = lambda: True,
    ) -> None:
        """Bind the socket at the first of `socket_paths` that takes it; without one only this rank is heard.

        `is_told` says whether there is nothing to deliver, or nobody who takes it.
        """
        super().__init__(name="gradwire-node", daemon=True)
        self._rank = rank
        self._collector = collector
        self._desk = desk
        self._notices = notices
        # Siblings that did not say goodbye yet, with what they said about the end.
        self._expected = {other for other in local_ranks if other != rank}
        self._endings: list[AttemptEnded] = []
        # Ranks that failed and wait for the answer to their goodbye, with when they get it at the latest.
        self._held: list[tuple[_Peer, float]] = []
        self._is_told = is_told
        self._finish_at = math.inf
        self._ended: AttemptEnded | None = None
        self._results: deque[Result] = deque()
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self.inbox: Inbox[Parcel | FromRank] = Inbox(self.wake)
        self.socket_path, self._listener = _listen(socket_paths, notices)
        if self._listener is not None:
            self._selector.register(self._listener, selectors.EVENT_READ)

    def wake(self) -> None:
        """Make the thread look at its inbox; from any thread."""
        # A full buffer means that it is about to look anyway; a closed one that it has ended.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    def announce(self, result: Result) -> None:
        """Tell waiting operators of a result; from any thread."""
        self._results.append(result)
        self.wake()

    def finish(self, ended: AttemptEnded | None, siblings_until: float) -> None:
        """End after the siblings' goodbyes, or at `siblings_until` (`time.monotonic` seconds) without them."""
        self._ended = ended
        self._finish_at = siblings_until
        self.wake()

    def run(self) -> None:
        """Serve until finished; trouble is logged once and never ends the thread."""
        while not self._is_finished():
            try:
                self._turn()
            except Exception as error:
                self._notices.say("hub", "the node's collecting thread met an error and goes on", error=error)
                time.sleep(_ERROR_PAUSE_SECONDS)
        try:
            self._wind_up()
        except Exception as error:
            self._notices.say("hub end", "the node's collecting thread could not end properly", error=error)

    def _is_finished(self) -> bool:
        if math.isinf(self._finish_at):
            return False
        return not self._expected or time.monotonic() >= self._finish_at

    def _turn(self) -> None:
        due_at = min(self._collector.next_due_at, self._finish_at)
        longest = _HELD_LOOK_SECONDS if self._held else _LONGEST_SLEEP_SECONDS
        self._hear(min(max(due_at - time.monotonic(), 0.0), longest))
        self._take_own()
        if self._ended is not None:
            self._end(self._ended)
            self._ended = None
        self._let_go(time.monotonic())
        self._collector.tick(time.monotonic())

    def _hear(self, timeout_seconds: float) -> bool:
        """Serve who has something to say within the time-out; return whether anybody had."""
        ready = self._selector.select(timeout_seconds)
        for key, _ in ready:
            if key.fileobj is self._wake_reader:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(4096)
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._read(key.data)
        return bool(ready)

    def _take_own(self) -> None:
        now = time.monotonic()
        for message, _ in self.inbox.take_all():
            self._take(self._rank, message, now)
        num_dropped = self.inbox.take_num_dropped()
        if num_dropped:
            self._collector.take(self._rank, Lost(num_dropped), now)
        while self._results:
            self._tell(self._results.popleft())

    def _take(self, rank: int, message: FromRank, now: float) -> None:
        self._collector.take(rank, message, now)
        if isinstance(message, Parcel) and isinstance(message.record, Switched | Refused):
            self._tell(message.record)

    def _tell(self, result: Result) -> None:
        self._desk.note(result)
        # A set or a refusal that was on its way is not the answer to a rollback.
        if not (isinstance(result, Switched) and result.is_rollback):
            return
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Peer) and key.data.awaits_result:
                self._reply(key.data, Outcome(result))
                self._drop(key.data)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            # Out of files, most likely: the connection stays in line, and asking again at once would spin.
            self._notices.say("accept", f"the node's socket takes no connection at present: {error}")
            time.sleep(_ERROR_PAUSE_SECONDS)
            return
        if not is_same_user(connection):
            self._notices.say("other user", "another user tried to use the node's socket and was turned away")
            connection.close()
            return
        connection.setblocking(False)
        self._selector.register(connection, selectors.EVENT_READ, _Peer(connection))

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        try:
            for message in peer.inlet.requests(data):
                self._serve(peer, message)
        except msgspec.MsgspecError as error:
            self._notices.say("local protocol", f"a connection to the node's socket sent nonsense: {error}")
            data = b""
        if not data:
            self._lose(peer)

    def _serve(self, peer: _Peer, message: Any) -> None:
        if isinstance(message, Hello):
            peer.rank = message.rank
        elif isinstance(message, Command):
            self._serve_command(peer, message)
        elif isinstance(message, Goodbye):
            self._expected.discard(self._rank if peer.rank is None else peer.rank)
            peer.rank = None
            if message.ended is not None and self._end(message.ended):
                self._held.append((peer, time.monotonic() + _HOLD_SECONDS))
            else:
                self._reply(peer, Taken())
        elif peer.rank is not None:
            self._take(peer.rank, message, time.monotonic())

    def _end(self, ended: AttemptEnded) -> bool:
        """Take how a rank ended, and return whether that was written down at once: this process may not live on."""
        self._endings.append(ended)
        if _SEVERITY[ended.status] == 0:
            return False
        self._collector.append(_worst(self._endings))
        return True

    def _let_go(self, now: float) -> None:
        """Answer ranks whose end is delivered, or waited long enough."""
        if self._held and (self._is_told() or now >= self._held[0][1]):
            for peer, _ in self._held:
                self._reply(peer, Taken())
            self._held.clear()

    def _serve_command(self, peer: _Peer, command: Command) -> None:
        # What this rank reported before the command came is known before it is answered.
        self._take_own()
        if command.command == "status":
            self._reply(peer, self._desk.status(self._collector.last_step))
            return
        if command.command == "plan":
            self._reply(peer, self._desk.plan(command.offset))
            return
        peer.awaits_result = True
        self._reply(peer, self._desk.roll_back(command.reason))

    def _reply(self, peer: _Peer, reply: Reply) -> None:
        # Answers are far smaller than a socket's buffer; an operator who does not read loses them.
        with contextlib.suppress(OSError):
            peer.connection.send(pack(reply))

    def _lose(self, peer: _Peer) -> None:
        self._drop(peer)
        if peer.rank is None:
            return
        self._expected.discard(peer.rank)
        self._collector.append(
            Event(
                at=time.time(),
                step=self._collector.last_step,
                kind="note",
                level="error",
                message=f"rank {peer.rank} went away without closing its session",
                rank=peer.rank,
            )
        )

    def _drop(self, peer: _Peer) -> None:
        with contextlib.suppress(KeyError):
            self._selector.unregister(peer.connection)
        peer.connection.close()

    def _wind_up(self) -> None:
        # What siblings sent in time and nobody read yet.
        deadline = time.monotonic() + _LAST_READ_SECONDS
        while self._hear(0.0) and time.monotonic() < deadline:
            continue
        self._take_own()
        self._collector.tick(math.inf)
        if self._ended is not None:
            self._end(self._ended)
        if self._endings:
            self._collector.append(_worst(self._endings))
        self._let_go(math.inf)
        for key in list(self._selector.get_map().values()):
            if isinstance(key.data, _Peer):
                self._drop(key.data)
        if self._listener is not None and self.socket_path is not None:
            self._listener.close()
            self.socket_path.unlink(missing_ok=True)
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()


def _worst(endings: Sequence[AttemptEnded]) -> AttemptEnded:
    worst = max(endings, key=lambda ended: _SEVERITY[ended.status])
    return msgspec.structs.replace(worst, last_step=max(ended.last_step for ended in endings))


def _listen(paths: Sequence[Path], notices: Notices) -> tuple[Path | None, socket.socket | None]:
    reason = "its path is too long"
    for path in paths:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            path.unlink(missing_ok=True)
            # The mode is set before anybody can connect: a socket is not reachable before `listen`.
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(64)
            listener.setblocking(False)
            return path, listener
        except OSError as error:
            listener.close()
            reason = error.strerror or str(error)
    notices.say("socket", f"the node has no local socket, so only its first rank is measured: {reason}")
    return None, None
