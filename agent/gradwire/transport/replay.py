"""Replay: delivering what processes that are gone left in the spool folder."""

import threading
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
            if facts.server not in (None, self._server) or self._stopping.is_set():
                continue
            try:
                spool = Spool(folder)
            except SpoolError:
                # Held by a live process, or not readable; neither is ours to settle.
                continue
            self._stream = Stream(spool, facts, server=self._server, token=self._token, notices=self._notices)
            summary = deliver(spool, self._stream)
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
                spool = Spool(folder)
            except SpoolBusyError:
                yield facts, f"process {facts.process} holds it and delivers it itself"
                continue
            except SpoolError as error:
                yield facts, str(error)
                continue
            yield facts, deliver(spool, Stream(spool, facts, server=target, token=token, notices=Notices()))


def deliver(spool: Spool, stream: Stream) -> DeliverySummary:
    """Run a stream to its end, close the spool and remove it if nothing is left.

    Args:
        spool: Closed afterwards.
        stream: Of that spool; not started if nobody delivers meanwhile.
    """
    stream.start()
    stream.drain(float("inf"))
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
