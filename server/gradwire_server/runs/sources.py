"""The stored rows of a run that every view of it begins with."""

from dataclasses import dataclass

import msgspec
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import AttemptStarted
from sqlalchemy import Connection, RowMapping, select

from gradwire_server.database.tables import attempts, models, nodes, runs


@dataclass(frozen=True)
class RunSource:
    """One model of a run: its rows, and what the agent stated of the current attempt."""

    run: RowMapping
    model: RowMapping
    attempt: RowMapping
    nodes: tuple[RowMapping, ...]
    facts: AttemptStarted
    plan: PlanSpec

    @property
    def id(self) -> str:
        """Id of the run."""
        return str(self.run["id"])

    @property
    def name(self) -> str:
        """Name of the model."""
        return str(self.model["name"])

    @property
    def attempt_id(self) -> str:
        """Id of the attempt that the model is in."""
        return str(self.attempt["id"])

    @property
    def step(self) -> int:
        """Newest step that any node reported."""
        return int(max((node["last_step"] for node in self.nodes), default=self.attempt["start_step"]))

    @property
    def remaining_steps(self) -> int | None:
        """Steps still to do, where the total is known."""
        total = self.attempt["total_steps"]
        return None if total is None else max(0, total - self.step)


def load_source(connection: Connection, run: str, model: str | None = None) -> RunSource | None:
    """Return the rows of a run, or None when the run or the model is unknown.

    Args:
        connection: A reading connection.
        run: Id of the run.
        model: Name of the model; None for the first one of the current attempt.
    """
    run_row = connection.execute(select(runs).where(runs.c.id == run)).mappings().one_or_none()
    if run_row is None:
        return None
    statement = select(models).where(models.c.run == run).order_by(models.c.name)
    rows = connection.execute(statement).mappings().all()
    # A model that the current attempt did not attach again is shown only when it is asked for.
    rows = sorted(rows, key=lambda row: bool(row["attempt"] != run_row["current_attempt"]))
    model_row = next((row for row in rows if model is None or row["name"] == model), None)
    if model_row is None:
        return None
    attempt = connection.execute(select(attempts).where(attempts.c.id == model_row["attempt"])).mappings().one()
    node_rows = connection.execute(
        select(nodes).where(nodes.c.attempt == attempt["id"], nodes.c.model == model_row["name"])
    )
    return RunSource(
        run=run_row,
        model=model_row,
        attempt=attempt,
        nodes=tuple(node_rows.mappings().all()),
        facts=msgspec.convert(model_row["facts"], AttemptStarted),
        plan=msgspec.convert(model_row["plan"], PlanSpec),
    )
