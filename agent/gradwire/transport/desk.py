"""The desk: what a local operator may ask of a node, answered without a server."""

import os
from collections.abc import Callable
from pathlib import Path

from gradwire_protocol.records import Record, Result, Switched
from msgspec.structs import replace

from gradwire.transport.local import Asked, Denied, NodeStatus, PlanPage, Reply
from gradwire.transport.place import StreamFacts
from gradwire.transport.spool import Spool

# Some 300 bytes each.
PAGE_TENSORS = 100


class Desk:
    """Knows which codec is in use on this node and asks the session for a rollback; used by one thread."""

    def __init__(
        self,
        facts: StreamFacts,
        spool: Spool,
        trouble: Callable[[], str],
        on_rollback: Callable[[str], None],
        on_plan: Callable[[], PlanPage] | None = None,
    ) -> None:
        """Take what it answers from.

        Args:
            facts: Of the stream.
            spool: Of the stream.
            trouble: Says why batches are not delivered.
            on_rollback: Asks the session.
            on_plan: Returns the plan in use with all tensors; None if there is none to show.
        """
        self._facts = facts
        self._spool = spool
        self._trouble = trouble
        self._on_rollback = on_rollback
        self._on_plan = on_plan
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

    def plan(self, offset: int) -> Reply:
        """Return a page of the plan in use, from tensor `offset` on; a page fits into the socket's buffer."""
        if self._on_plan is None:
            return Denied("this session has no plan to show")
        try:
            whole = self._on_plan()
        except RuntimeError:
            # Training goes on meanwhile, and has just dealt out its buckets anew.
            return Denied("the plan is changing at this very moment; ask again")
        return replace(whole, tensors=whole.tensors[max(0, offset) :][:PAGE_TENSORS])

    def roll_back(self, reason: str) -> Reply:
        """Ask the session for uncompressed training, also if it is: an order to compress may be under way."""
        if not self._facts.started.is_steered:
            return Denied("this run is measured only: its ranks cannot switch together, see the notes of its start")
        asked = Asked(codec=self._codec, since_step=self._since_step)
        self._on_rollback(reason)
        return asked
