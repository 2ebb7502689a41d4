"""One node for tests: reporters in this process, siblings in processes of their own, and what they spooled."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from agent_stream import attempt_started, plan
from gradwire.transport import place
from gradwire.transport.node import open_reporter
from gradwire.transport.operator import find_nodes
from gradwire.transport.reporter import DeliverySummary, Reporter
from gradwire.transport.spool import Spool
from gradwire_protocol.identity import new_id
from gradwire_protocol.records import AttemptEnded, NodeFacts, Record, StepWindow, Switched

RECORD = msgspec.json.Decoder(Record)

SIBLING = textwrap.dedent(
    """
    import sys, time
    import msgspec
    from agent_stream import window
    from gradwire_protocol.records import AttemptEnded
    from pathlib import Path
    from gradwire.transport.node import open_reporter
    from agent_stream import attempt_started
    options = msgspec.json.decode(sys.argv[1])
    reporter = open_reporter(
        run=options["run"], attempt=options["attempt"], model="model", node=0, rank=options["rank"],
        local_ranks=tuple(options["local_ranks"]), started=attempt_started(), spool_folder=Path(options["spool"]),
        server=None, token=None, on_rollback=print,
    )
    for step in range(1, options["num_windows"] + 1):
        reporter.report(window(step, num_steps=1, num_rank_steps=1))
        reporter.report_loss([step], [float(options["rank"])], [1.0])
    print("reported", flush=True)
    sys.stdin.readline()
    ended = AttemptEnded(at=time.time(), last_step=options["num_windows"], status="finished")
    summary = reporter.close(ended, 20.0)
    print(summary.num_delivered, summary.num_dropped, flush=True)
    """
)


class Node:
    """Arguments of one node's reporters."""

    def __init__(self, spool: Path, local_ranks: tuple[int, ...] = (0, 1), server: str | None = None) -> None:
        self.spool = spool
        self.local_ranks = local_ranks
        self.server = server
        self.run = new_id()
        self.attempt = new_id()
        self.rollbacks: list[str] = []
        self.facts: dict[str, object] = {}

    def open(self, rank: int = 0, **changes: object) -> Reporter:
        arguments: dict[str, object] = {
            "run": self.run,
            "attempt": self.attempt,
            "model": "model",
            "node": 0,
            "rank": rank,
            "local_ranks": self.local_ranks,
            "started": attempt_started(node=NodeFacts(host="node-00", ranks=self.local_ranks), **self.facts),
            "spool_folder": self.spool,
            "server": self.server,
            "token": "ingest-secret",
            "on_rollback": self.rollbacks.append,
        }
        return open_reporter(**{**arguments, **changes})  # type: ignore[arg-type]

    def start_sibling(self, rank: int, num_windows: int) -> subprocess.Popen[bytes]:
        options = {
            "run": self.run,
            "attempt": self.attempt,
            "rank": rank,
            "local_ranks": self.local_ranks,
            "spool": str(self.spool),
            "num_windows": num_windows,
        }
        tests = str(Path(__file__).parent)
        return subprocess.Popen(
            [sys.executable, "-c", SIBLING, msgspec.json.encode(options).decode()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": tests},
        )

    @property
    def folder(self) -> Path:
        return place.stream_folder(self.spool, self.run, self.attempt, "model", 0)

    @property
    def socket(self) -> Path:
        (node,) = find_nodes([self.spool])
        return node.socket

    def spooled(self) -> list[Record]:
        """Return everything that a closed node left."""
        return spooled(self.folder)


def spooled(folder: Path) -> list[Record]:
    """Return every record of a spool that nobody holds."""
    spool = Spool(folder)
    records = []
    while (batch := spool.next_batch()) is not None:
        records += [RECORD.decode(record) for record in batch.records]
        spool.acknowledge(batch.number)
    spool.close()
    return records


@contextlib.contextmanager
def opened(node: Node, **changes: object) -> Iterator[Reporter]:
    reporter = node.open(**changes)
    try:
        yield reporter
    finally:
        reporter.close(None, 5.0)


def ended(status: str = "finished", last_step: int = 10, exception: str = "") -> AttemptEnded:
    return AttemptEnded(at=time.time(), last_step=last_step, status=status, exception=exception)  # type: ignore[arg-type]


def close_all(*reporters: tuple[Reporter, AttemptEnded | None]) -> list[DeliverySummary]:
    """Close the ranks of a node at once, as they do at the end of training."""
    summaries: dict[int, DeliverySummary] = {}

    def close(index: int, reporter: Reporter, how: AttemptEnded | None) -> None:
        summaries[index] = reporter.close(how, 20.0)

    threads = [threading.Thread(target=close, args=(index, *pair)) for index, pair in enumerate(reporters)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [summaries[index] for index in range(len(reporters))]


def switched(codec: str, *, step: int, is_rollback: bool = False) -> Switched:
    return Switched(
        at=time.time(),
        step=step,
        epoch=1,
        plan=plan(codec),
        num_ranks=2,
        cause="local",
        is_rollback=is_rollback,
    )


def windows_of(records: list[Record]) -> list[StepWindow]:
    return [record for record in records if isinstance(record, StepWindow)]
