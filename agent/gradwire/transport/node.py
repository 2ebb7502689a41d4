"""Opening a rank's reporter, and the reporter of a node's first rank."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gradwire_protocol.records import AttemptEnded, AttemptStarted, Record, Result

from gradwire.errors import SpoolError
from gradwire.transport import place
from gradwire.transport.batches import is_urgent, weigh
from gradwire.transport.collector import Collector
from gradwire.transport.desk import Desk
from gradwire.transport.http import clean_server, exposes_token
from gradwire.transport.hub import Hub
from gradwire.transport.local import LossPart, Parcel, PlanPage
from gradwire.transport.notices import Notices
from gradwire.transport.place import StreamFacts
from gradwire.transport.replay import Replay, settle
from gradwire.transport.reporter import DeliverySummary, Reporter
from gradwire.transport.sibling import SiblingReporter
from gradwire.transport.spool import DEFAULT_CAP_BYTES, Spool
from gradwire.transport.stream import Stream

# Of the time that closing may take, the part in which siblings are waited for, and its bound in seconds.
_SIBLINGS_SHARE = 0.4
_SIBLINGS_SECONDS = 4.0


def open_reporter(
    *,
    run: str,
    attempt: str,
    model: str,
    node: int,
    rank: int,
    local_ranks: tuple[int, ...],
    started: AttemptStarted,
    spool_folder: Path,
    server: str | None,
    token: str | None,
    on_rollback: Callable[[str], None],
    on_plan: Callable[[], PlanPage] | None = None,
    cap_bytes: int = DEFAULT_CAP_BYTES,
) -> Reporter:
    """Open the reporter of a rank: the node's first rank spools and delivers, its siblings hand over to it.

    Args:
        run: UUID; with `attempt`, `model` and `node` it names the stream.
        attempt: UUID of this start of the run.
        model: Name of the attached model.
        node: Number of the node, its smallest rank or the order of it.
        rank: Global rank of this process.
        local_ranks: Global ranks of all processes of the node.
        started: First record of the stream; of the node's first rank only.
        spool_folder: What cannot be delivered waits below it; below the temporary folder if it cannot be written.
        server: Base URL; None spools only.
        token: Ingest token.
        on_rollback: Called with a reason when a local operator asks for a rollback; any thread, must not block.
        on_plan: Returns the plan in use with all tensors when a local operator asks; any thread, must not block.
        cap_bytes: Most that this stream keeps on disk; what comes on top is dropped and counted.

    Raises:
        SettingError: `server` is not a URL, or httpx is missing.
        SpoolError: Neither the spool folder nor the temporary one can be written.
        MalformedError: `run` or `attempt` is not a UUID.
    """
    server = clean_server(server) if server else None
    notices = Notices()
    if rank != min(local_ranks):
        roots = [spool_folder, *place.temporary_spools()]
        folders = [place.stream_folder(root, run, attempt, model, node) for root in roots]
        return SiblingReporter(rank, [path for folder in folders for path in place.socket_paths(folder)])
    if exposes_token(server or "", token):
        notices.say("plain http", f"the token travels unencrypted to {server}; use https beyond a trusted network")
    spool = _open_spool(spool_folder, run, attempt, model, node, cap_bytes, notices)
    facts = StreamFacts(run=run, attempt=attempt, model=model, node=node, started=started, server=server)
    reporter = NodeReporter(rank, local_ranks, facts, spool, token, on_rollback, on_plan, notices)
    reporter.start()
    return reporter


class NodeReporter:
    """Reporter of a node's first rank; owns the spool from now on."""

    def __init__(
        self,
        rank: int,
        local_ranks: Sequence[int],
        facts: StreamFacts,
        spool: Spool,
        token: str | None,
        on_rollback: Callable[[str], None],
        on_plan: Callable[[], PlanPage] | None,
        notices: Notices,
    ) -> None:
        """Bind the node's socket and spool the stream's first record, `facts.started`."""
        self._process = os.getpid()
        self._spool = spool
        self._is_closing = False
        self._summary = DeliverySummary()
        self._stream: Stream | None = None
        self._replay: Replay | None = None
        if facts.server is not None:
            self._stream = Stream(spool, facts, server=facts.server, token=token, notices=notices)
            self._replay = Replay(spool.folder.parent, server=facts.server, token=token, notices=notices)
        collector = Collector(spool, local_ranks, self._stream.wake if self._stream else _ignore, notices)
        self._hub = Hub(
            rank=rank,
            local_ranks=local_ranks,
            socket_paths=place.socket_paths(spool.folder),
            collector=collector,
            desk=Desk(facts, spool, self._trouble, on_rollback, on_plan),
            notices=notices,
            is_told=self._is_told,
        )
        place.write_facts(spool.folder, facts, self._hub.socket_path)
        collector.append(facts.started)

    def start(self) -> None:
        """Start the node's threads; once."""
        for thread in (self._hub, self._stream, self._replay):
            if thread is not None:
                thread.start()

    def report(self, record: Record, *, urgent: bool = False) -> None:
        """See `Reporter.report`."""
        if os.getpid() == self._process:
            parcel = Parcel(record, urgent)
            self._hub.inbox.put(parcel, weigh(record), may_use_reserve=is_urgent(record))

    def report_loss(self, steps: Sequence[int], values: Sequence[float], weights: Sequence[float]) -> None:
        """See `Reporter.report_loss`."""
        if os.getpid() == self._process:
            self._hub.inbox.put(LossPart(list(steps), list(values), list(weights)), len(steps))

    def announce(self, result: Result) -> None:
        """See `Reporter.announce`."""
        if os.getpid() == self._process:
            self._hub.announce(result)

    def close(self, ended: AttemptEnded | None, timeout_seconds: float) -> DeliverySummary:
        """See `Reporter.close`."""
        if os.getpid() != self._process:
            return DeliverySummary()
        # Closing that was interrupted, by a second Ctrl-C for example, is not begun again by `atexit`.
        if not self._is_closing:
            self._is_closing = True
            self._summary = self._close(ended, time.monotonic() + timeout_seconds)
        return self._summary

    def _close(self, ended: AttemptEnded | None, deadline: float) -> DeliverySummary:
        now = time.monotonic()
        self._hub.finish(ended, now + min(_SIBLINGS_SECONDS, (deadline - now) * _SIBLINGS_SHARE))
        self._hub.join(max(0.0, deadline - now))
        if self._stream is not None:
            self._stream.drain(deadline)
        if self._replay is not None:
            self._replay.stop()
        return settle(self._spool)

    def _is_told(self) -> bool:
        return self._stream is None or bool(self._stream.trouble) or self._spool.num_waiting == 0

    def _trouble(self) -> str:
        return "no server is set" if self._stream is None else self._stream.trouble


def _open_spool(
    root: Path, run: str, attempt: str, model: str, node: int, cap_bytes: int, notices: Notices
) -> Spool:
    try:
        return Spool(place.stream_folder(root, run, attempt, model, node), cap_bytes)
    except SpoolError as error:
        roots = place.temporary_spools()
        if not roots:
            raise
        notices.say("spool", f"{error}; measurements wait in {roots[0]} instead")
        return Spool(place.stream_folder(roots[0], run, attempt, model, node), cap_bytes)


def _ignore(is_urgent: bool) -> None:
    """Nobody sends: there is no server."""
