"""Replay: delivering what processes that are gone left in the spool folder."""

import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gradwire.errors import SpoolBusyError, SpoolError
from gradwire.transport import place
from gradwire.transport.notices import Notices
from gradwire.transport.place import StreamFacts
from gradwire.transport.reporter import DeliverySummary
from gradwire.transport.spool import Spool
from gradwire.transport.stream import Stream

_AGAIN_SECONDS = 30.0

# A live stream writes at least a window every few seconds, unless its training stands still.
_QUIET_SECONDS = 120.0


class Replay(threading.Thread):
    """Delivers, beside the live stream, what earlier attempts of a run left on this machine."""

    def __init__(self, run_folder: Path, *, server: str, token: str | None, notices: Notices) -> None:
        """Take the run's folder; streams of other servers stay where they are."""
        super().__init__(name="gradwire-replay", daemon=True)
        self._run_folder = run_folder
        self._server = server
        self._token = token
        self._notices = notices
        self._stopping = threading.Event()
        self._stream: Stream | None = None

    def run(self) -> None:
        """Try again until nothing is left; trouble is logged once and never ends training."""
        while not self._stopping.is_set():
            try:
                if self._deliver_all():
                    return
            except Exception as error:
                self._notices.say("replay", "delivering an earlier attempt's data met an error", error=error)
            self._stopping.wait(_AGAIN_SECONDS)

    def stop(self) -> None:
        """End now; what is not delivered stays."""
        self._stopping.set()
        stream = self._stream
        if stream is not None:
            stream.stop()
        self.join(1.0)

    def _deliver_all(self) -> bool:
        is_complete = True
        for folder, facts in place.find_streams(self._run_folder):
            is_ours = facts.server in (None, self._server) and facts.host == socket.gethostname()
            if not is_ours or self._stopping.is_set():
                continue
            try:
                spool = adopt(folder, facts)
            except SpoolError:
                # In use by a live process, or not readable; neither is ours to settle.
                continue
            self._stream = Stream(
                spool, facts, server=self._server, token=self._token, notices=self._notices, is_late=True
            )
            summary = deliver(spool, self._stream, facts)
            is_complete = is_complete and summary.spool_path is None
        return is_complete


def sync(
    roots: list[Path], *, server: str | None, token: str | None
) -> Iterator[tuple[StreamFacts, DeliverySummary | str]]:
    """Deliver every stream below the roots that no live process holds.

    Args:
        roots: Spool folders, or a single run's or stream's folder.
        server: Base URL for all of them; None takes the one that each was meant for.
        token: Ingest token.

    Yields:
        Whose stream, with what became of it, or why it was left alone.
    """
    for root in roots:
        for folder, facts in place.find_streams(root):
            target = server or facts.server
            if target is None:
                yield facts, "it was meant for no server; name one with --server"
                continue
            try:
                spool = adopt(folder, facts)
            except SpoolError as error:
                yield facts, str(error)
                continue
            stream = Stream(spool, facts, server=target, token=token, notices=Notices(), is_late=True)
            yield facts, deliver(spool, stream, facts)


def adopt(folder: Path, facts: StreamFacts) -> Spool:
    """Open the spool of a process that is gone.

    Raises:
        SpoolBusyError: The process lives, or may live on another host, where its lock is not always seen.
        SpoolError: The folder cannot be used.
    """
    whose = f"process {facts.process} on {facts.host}"
    if facts.host != socket.gethostname() and _seconds_since_write(folder) < _QUIET_SECONDS:
        raise SpoolBusyError(f"{whose} wrote to it less than {_QUIET_SECONDS:.0f} s ago and may still do so")
    try:
        spool = Spool(folder)
    except SpoolBusyError as error:
        raise SpoolBusyError(f"{whose} holds it and delivers it itself") from error
    if not spool.is_locked and facts.host == socket.gethostname() and _is_alive(facts.process):
        spool.close()
        raise SpoolBusyError(f"{whose} lives, and its file system has no locks to tell whether it still delivers")
    return spool


def deliver(spool: Spool, stream: Stream, facts: StreamFacts) -> DeliverySummary:
    """Run a stream to its end, close the spool and remove it if nothing is left.

    Args:
        spool: Closed afterwards.
        stream: Of that spool; not started yet.
        facts: Of the process that is gone, whose socket in the temporary folder is removed too.
    """
    stream.start()
    stream.drain(math.inf)
    with contextlib.suppress(OSError):
        if facts.socket and Path(facts.socket).is_socket():
            Path(facts.socket).unlink()
    return settle(spool)


def settle(spool: Spool) -> DeliverySummary:
    """Close a spool that nobody uses any more, removing it if everything is delivered."""
    num_waiting = spool.num_waiting
    summary = DeliverySummary(
        num_delivered=spool.num_acknowledged,
        num_undelivered=num_waiting,
        num_dropped=spool.num_dropped,
        spool_path=spool.folder if num_waiting else None,
    )
    if num_waiting:
        spool.close()
    else:
        spool.remove()
        place.remove_run_folder(spool.folder)
    return summary


def _seconds_since_write(folder: Path) -> float:
    newest = max((path.stat().st_mtime for path in folder.glob("*.segment")), default=0.0)
    return time.time() - newest


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
