"""The desk: what a local operator may ask of a node, answered without a server."""

import os
from collections.abc import Callable
from pathlib import Path

from gradwire_protocol.records import Record, Result, Switched

from gradwire.transport.local import Asked, Denied, NodeStatus, Reply
from gradwire.transport.place import StreamFacts
from gradwire.transport.spool import Spool


class Desk:
    """Knows which codec is in use on this node and asks the session for a rollback; used by one thread."""

    def __init__(
        self, facts: StreamFacts, spool: Spool, trouble: Callable[[], str], on_rollback: Callable[[str], None]
    ) -> None:
        """Take what it answers from; `trouble` says why batches are not delivered."""
        self._facts = facts
        self._spool = spool
        self._trouble = trouble
        self._on_rollback = on_rollback
        self._codec = facts.started.plan.codec
        self._since_step = facts.started.start_step

    def note(self, record: Record | Result) -> None:
        """Learn of a switch."""
        if isinstance(record, Switched):
            self._codec = record.plan.codec
            self._since_step = record.step

    def status(self, last_step: int) -> NodeStatus:
        """Return the node's state."""
        facts, started = self._facts, self._facts.started
        return NodeStatus(
            run=facts.run,
            run_name=started.run_name,
            attempt=facts.attempt,
            model=facts.model,
            node=facts.node,
            host=started.node.host,
            process=os.getpid(),
            ranks=started.node.ranks,
            world_size=started.world_size,
            device=started.device,
            codec=self._codec,
            since_step=self._since_step,
            last_step=max(last_step, self._since_step),
            is_steered=started.is_steered,
            server=facts.server,
            trouble=self._trouble(),
            num_delivered=self._spool.num_acknowledged,
            num_waiting=self._spool.num_waiting,
            num_dropped=self._spool.num_dropped,
            spool=str(Path(self._spool.folder)),
        )

    def roll_back(self, reason: str) -> Reply:
        """Ask the session for uncompressed training, also if it is: an order to compress may be under way."""
        if not self._facts.started.is_steered:
            return Denied("this run is measured only: its ranks cannot switch together, see the notes of its start")
        asked = Asked(codec=self._codec, since_step=self._since_step)
        self._on_rollback(reason)
        return asked
