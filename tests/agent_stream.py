"""The stream of one node as an agent sends it, made up for tests of the service and its pages."""

import time
from collections.abc import Sequence

import httpx
import msgspec
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import Batch, Directive, DirectiveAnswer, ResultReport
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import (
    AttemptEnded,
    AttemptStarted,
    LinkFacts,
    NodeFacts,
    PhaseSeconds,
    Points,
    Record,
    Result,
    StepWindow,
    Switched,
)


def attempt_started(**changes: object) -> AttemptStarted:
    """Return the facts of two CPU ranks on one node, with `changes`."""
    facts = AttemptStarted(
        at=time.time(),
        run_name="toy",
        node=NodeFacts(host="node-00", ranks=(0, 1)),
        world_size=2,
        backend="gloo",
        device="cpu",
        link=LinkFacts(interface="eth0", nominal_bytes_per_second=125e6, note="shaped by tbf"),
        optimizer="AdamW",
        num_elements=1_000_000,
        gradient_bytes=4_000_000,
        codecs=("none", "bf16", "int8", "onebit", "topk"),
        codec_memory_bytes={"bf16": 4_000_000, "int8": 8_000_000, "onebit": 8_000_000, "topk": 8_000_000},
        refused_codecs={"onebit": "one-bit gradients do not converge under AdamW"},
    )
    return msgspec.structs.replace(facts, **changes)


def window(first_step: int, num_steps: int = 10, **changes: object) -> StepWindow:
    """Return a window of 100 ms steps on two ranks, 45 % of them exposed transfer, with `changes`."""
    num_rank_steps = 2 * num_steps
    seconds = PhaseSeconds(
        step=0.100 * num_rank_steps,
        data_wait=0.002 * num_rank_steps,
        forward=0.016 * num_rank_steps,
        backward=0.030 * num_rank_steps,
        exposed_communication=0.047 * num_rank_steps,
        exposed_transfer=0.045 * num_rank_steps,
        straggler_wait=0.002 * num_rank_steps,
        optimizer=0.004 * num_rank_steps,
        other=0.001 * num_rank_steps,
        overlapped=0.005 * num_rank_steps,
        agent=0.0001 * num_rank_steps,
    )
    made = StepWindow(
        first_step=first_step,
        last_step=first_step + num_steps - 1,
        num_steps=num_steps,
        num_rank_steps=num_rank_steps,
        epoch=0,
        codec="none",
        started_at=time.time(),
        wall_seconds=0.100 * num_steps,
        seconds=seconds,
        step_seconds_min=0.095,
        step_seconds_max=0.110,
        logical_bytes=4_000_000 * num_rank_steps,
        wire_bytes=4_000_000 * num_rank_steps,
        samples=32 * num_rank_steps,
        tokens=4096 * num_rank_steps,
    )
    return msgspec.structs.replace(made, **changes)


def losses(first_step: int, values: Sequence[float]) -> Points:
    """Return losses of consecutive steps."""
    steps = tuple(range(first_step, first_step + len(values)))
    return Points(name="loss", steps=steps, values=tuple(values))


class AgentStream:
    """One node's stream against a server: numbers its batches and answers directives as a training would.

    `client` carries an ingest token. A second node, model or attempt is another stream with `run` given.
    """

    def __init__(
        self,
        client: httpx.Client,
        *,
        run: str | None = None,
        attempt: str | None = None,
        model: str = "model",
        node: int = 0,
        node_facts: NodeFacts | None = None,
        **facts: object,
    ) -> None:
        self.client = client
        self.run = run or new_id()
        self.attempt = attempt or new_id()
        self.model = model
        self.node = node
        self.number = 0
        self.epoch = 0
        if node_facts is not None:
            facts["node"] = node_facts
        self.facts = attempt_started(**facts)

    def batch(self, *records: Record, number: int | None = None) -> Batch:
        """Return a batch with the next number, or the one given; sends nothing."""
        return Batch(
            run=self.run,
            attempt=self.attempt,
            model=self.model,
            node=self.node,
            number=self.number + 1 if number is None else number,
            records=records,
        )

    def post(self, batch: Batch | bytes) -> httpx.Response:
        """Send a batch as it is and return whatever comes back."""
        return self.client.post(routes.BATCHES, content=batch if isinstance(batch, bytes) else encode(batch))

    def begin(self, *records: Record) -> None:
        """Send the facts, and `records` behind them."""
        self.send(self.facts, *records)

    def send(self, *records: Record) -> float:
        """Send records as the next batch and return the interval that the server wants, seconds."""
        answer = self.post(self.batch(*records))
        assert answer.status_code == 200, answer.text
        self.number += 1
        assert answer.json()["number"] == self.number
        return float(answer.json()["interval_seconds"])

    def wait_directive(self, *, after: int = 0, wait: float = 25.0) -> Directive | None:
        """Ask for the newest open directive as rank 0 does."""
        parameters = {"attempt": self.attempt, "model": self.model, "after": after, "wait": wait}
        answer = self.client.get(routes.AGENT_DIRECTIVE.format(run=self.run), params=parameters)
        assert answer.status_code == 200, answer.text
        return msgspec.json.decode(answer.content, type=DirectiveAnswer).directive

    def switched(self, directive: Directive, *, step: int) -> Switched:
        """Return the unanimous vote on a directive."""
        self.epoch += 1
        return Switched(
            at=time.time(),
            step=step,
            epoch=self.epoch,
            plan=directive.plan,
            num_ranks=self.facts.world_size,
            cause="directive",
            revision=directive.revision,
            is_rollback=directive.kind == "rollback",
        )

    def report(self, result: Result) -> None:
        """Post a vote's result at once, as rank 0 does beside its stream."""
        report = ResultReport(attempt=self.attempt, model=self.model, result=result)
        answer = self.client.post(routes.AGENT_RESULT.format(run=self.run), content=encode(report))
        assert answer.status_code == 200, answer.text

    def end(self, *, last_step: int = 0, status: str = "finished", exception: str = "") -> None:
        """Send the last record of the stream."""
        ended = AttemptEnded(at=time.time(), last_step=last_step, status="finished", exception=exception)
        self.send(msgspec.structs.replace(ended, status=status))


def plan(codec: str, **parameters: int | float) -> PlanSpec:
    """Return a plan of a codec with the usual exemptions."""
    return PlanSpec(codec=codec, parameters=dict(parameters))
