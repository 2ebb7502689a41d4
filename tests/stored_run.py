"""Runs stored as ingest stores them, in an SQLite file of a test, without a server in between."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from agent_stream import attempt_started, plan
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import PhaseSeconds, Points, Record, StepWindow, Switched
from gradwire_server.database.tables import metadata
from gradwire_server.ingest.store import store_batch
from gradwire_server.runs.reading import run_view
from gradwire_server.runs.views import RunView
from sqlalchemy import Connection, create_engine

# An arbitrary moment; every receipt is a second later than the one before.
BEGIN = 1_800_000_000.0


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    """A connection to an empty database, rolled back by nobody."""
    engine = create_engine(f"sqlite:///{tmp_path}/gradwire.db")
    metadata.create_all(engine)
    with engine.connect() as opened:
        yield opened
    engine.dispose()


class StoredRun:
    """Streams of one run, stored through ingest; `attempt` and `node` name the stream that `send` continues."""

    def __init__(
        self, connection: Connection, *, run: str | None = None, now: float = BEGIN, **facts: object
    ) -> None:
        self.connection = connection
        self.id = run or new_id()
        self.attempt = new_id()
        self.now = now
        self.facts = attempt_started(**facts)
        self._numbers: dict[tuple[str, str, int], Iterator[int]] = {}

    def send(self, *records: Record, node: int = 0, model: str = "model") -> None:
        """Store records as the next batch of a stream; the first batch of a stream begins it."""
        stream = (self.attempt, model, node)
        if stream not in self._numbers:
            self._numbers[stream] = count(1)
            records = (self.facts, *records)
        self.now += 1.0
        batch = Batch(
            run=self.id,
            attempt=self.attempt,
            model=model,
            node=node,
            number=next(self._numbers[stream]),
            records=records,
        )
        store_batch(self.connection, batch, now=self.now)

    def restart(self, attempt: str | None = None) -> None:
        """Go on as a new attempt."""
        self.attempt = attempt or new_id()

    def switch(self, step: int, epoch: int, codec: str, **changes: object) -> None:
        """Store a switch that a node asked for."""
        values: dict[str, object] = {"cause": "local", **changes}
        self.send(Switched(at=self.now, step=step, epoch=epoch, plan=plan(codec), num_ranks=2, **values))  # type: ignore[arg-type]


def view(connection: Connection, run: StoredRun, after: float = 1.0, **changes: object) -> RunView:
    """Return what the run's page shows `after` seconds since the last receipt."""
    found = run_view(connection, run.id, run.now + after, **changes)  # type: ignore[arg-type]
    assert found is not None
    return found


def steps(
    first_step: int,
    num_steps: int = 10,
    *,
    step: float = 0.100,
    transfer: float | None = 0.040,
    wait: float = 0.0,
    data_wait: float = 0.0,
    forward: float = 0.020,
    codec_seconds: float = 0.0,
    optimizer: float = 0.010,
    pause: float = 0.0,
    overlapped: float = 0.0,
    ranks: int = 2,
    **changes: object,
) -> StepWindow:
    """Return a window whose seconds for each step and rank are those given; backward takes what is left."""
    exposed = (0.040 if transfer is None else transfer) + wait
    per_step = {
        "step": step + pause,
        "data_wait": data_wait,
        "forward": forward,
        "backward": step - exposed - data_wait - forward - codec_seconds - optimizer,
        "exposed_communication": exposed,
        "exposed_transfer": transfer,
        "straggler_wait": None if transfer is None else wait,
        "exposed_codec": codec_seconds,
        "optimizer": optimizer,
        "pause": pause,
        "overlapped": overlapped,
        "encode": 0.75 * codec_seconds,
        "decode": 0.25 * codec_seconds,
        "agent": 0.0001,
    }
    return _window(first_step, num_steps, num_steps * ranks, per_step, changes)


def _window(
    first_step: int,
    num_steps: int,
    num_rank_steps: int,
    per_step: dict[str, float | None],
    changes: dict[str, object],
) -> StepWindow:
    scaled = {name: None if value is None else value * num_rank_steps for name, value in per_step.items()}
    wire_bytes = 4_000_000 if changes.get("codec", "none") == "none" else 1_000_000
    values: dict[str, object] = {
        "first_step": first_step,
        "last_step": first_step + num_steps - 1,
        "num_steps": num_steps,
        "num_rank_steps": num_rank_steps,
        "epoch": 0,
        "codec": "none",
        "seconds": PhaseSeconds(**scaled),  # type: ignore[arg-type]
        "step_seconds_min": per_step["step"],
        "step_seconds_max": per_step["step"],
        "logical_bytes": 4_000_000 * num_rank_steps,
        "wire_bytes": wire_bytes * num_rank_steps,
        "samples": 32 * num_rank_steps,
        "tokens": 1000 * num_rank_steps,
    }
    return StepWindow(**(values | changes))  # type: ignore[arg-type]


def metric(
    first_step: int, values: Sequence[float | None], *, name: str = "loss", every: int = 1, **changes: object
) -> Points:
    """Return values of a metric at every `every`-th step; None stands for NaN."""
    numbers = tuple(first_step + every * index for index in range(len(values)))
    kinds = {str(index): "nan" for index, value in enumerate(values) if value is None}
    return Points(name=name, steps=numbers, values=tuple(values), kinds=kinds, **changes)  # type: ignore[arg-type]
