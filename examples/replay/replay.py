"""Plays a training's nodes against a real server: batches, the long poll, votes and results."""

import threading
import time

import httpx
import msgspec
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import Batch, Directive, DirectiveAnswer, ResultReport
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import AttemptEnded, Record, Refusal, Refused, Result, Switched

from examples.replay.training import STEPS_PER_WINDOW, Training

# Windows in one batch while history is told; far below the limits.
WINDOWS_PER_BATCH = 40

# Between evaluations, in steps.
EVALUATION_STEPS = 300

# Windows after a switch that are marked as settling.
SETTLING_WINDOWS = 1


class Replay:
    """A training that goes on as told: `run` tells history at once, `live` goes at the training's own pace."""

    def __init__(self, url: str, token: str, training: Training) -> None:
        self.training = training
        self.run_id = new_id()
        self.attempt = new_id()
        self.step = training.start_step
        self.plan = PlanSpec()
        self.epoch = 0
        self.revision = 0
        self._settling = 0
        # One thread may play it live while another tells more.
        self._lock = threading.RLock()
        self._numbers = [0] * len(training.hosts)
        self._client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0)
        for node in range(len(training.hosts)):
            self._send(node, [training.started(node, self.plan)])

    def tell(self, num_steps: int) -> None:
        """Report so many steps at once."""
        end = self.step + num_steps
        while self.step < end:
            num_windows = min(WINDOWS_PER_BATCH, -(-(end - self.step) // STEPS_PER_WINDOW))
            self._report(num_windows)

    def live(self, seconds: float) -> None:
        """Report a window for every second and answer changes as they come."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            started = time.monotonic()
            directive = self.poll(min(1.0, max(0.0, deadline - started)))
            if directive is not None:
                self.answer(directive)
            elif time.monotonic() - started >= 0.9:
                self._report(1)

    def poll(self, wait_seconds: float) -> Directive | None:
        """Ask for the newest change as rank 0 does."""
        answer = self._client.get(
            routes.AGENT_DIRECTIVE.format(run=self.run_id),
            params={"attempt": self.attempt, "after": self.revision, "wait": wait_seconds},
        )
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=DirectiveAnswer).directive

    def answer(self, directive: Directive) -> None:
        """Apply a change on all ranks at the next step and say so."""
        self.epoch += 1
        self.revision = directive.revision
        self.plan = directive.plan
        self._settling = SETTLING_WINDOWS
        self._post_result(
            Switched(
                at=time.time(),
                step=self.step,
                epoch=self.epoch,
                plan=directive.plan,
                num_ranks=self.training.world_size,
                cause="directive",
                revision=directive.revision,
                is_rollback=directive.kind == "rollback",
                residual_norm_dropped=0.42 if directive.kind == "rollback" else None,
            )
        )

    def refuse(self, directive: Directive, *, rank: int, reason: str) -> None:
        """Refuse a change on one rank."""
        self.revision = directive.revision
        host = self.training.hosts[rank // self.training.ranks_per_node]
        refusal = Refusal(rank=rank, host=host, reason=reason)
        self._post_result(
            Refused(
                at=time.time(), step=self.step, epoch=self.epoch, revision=directive.revision, refusals=(refusal,)
            )
        )

    def end(self, status: str = "finished", exception: str = "") -> None:
        """End all nodes' streams."""
        ended = AttemptEnded(at=time.time(), last_step=self.step - 1, status="finished", exception=exception)
        for node in range(len(self.training.hosts)):
            self._send(node, [msgspec.structs.replace(ended, status=status)])

    def send(self, *records: Record) -> None:
        """Send records of the first node."""
        self._send(0, list(records))

    def _report(self, num_windows: int) -> None:
        with self._lock:
            self._report_windows(num_windows)

    def _report_windows(self, num_windows: int) -> None:
        first_step = self.step
        firsts = range(first_step, first_step + num_windows * STEPS_PER_WINDOW, STEPS_PER_WINDOW)
        codec, settling = self.plan.codec, self._settling
        for node in range(len(self.training.hosts)):
            records: list[Record] = [
                self.training.window(step, node, codec, self.epoch, is_settling=index < settling)
                for index, step in enumerate(firsts)
            ]
            if node == 0:
                records += [self.training.losses(step, codec) for step in firsts]
                checks = (step for step in firsts if step % EVALUATION_STEPS < STEPS_PER_WINDOW)
                records += [
                    self.training.accuracy(step // EVALUATION_STEPS * EVALUATION_STEPS, codec) for step in checks
                ]
            self._send(node, records)
        self._settling = max(0, settling - num_windows)
        self.step = first_step + num_windows * STEPS_PER_WINDOW

    def _send(self, node: int, records: list[Record]) -> None:
        with self._lock:
            self._send_next(node, records)

    def _send_next(self, node: int, records: list[Record]) -> None:
        self._numbers[node] += 1
        batch = Batch(
            run=self.run_id,
            attempt=self.attempt,
            model="model",
            node=node,
            number=self._numbers[node],
            records=tuple(records),
        )
        self._client.post(routes.BATCHES, content=encode(batch)).raise_for_status()

    def _post_result(self, result: Result) -> None:
        report = ResultReport(attempt=self.attempt, model="model", result=result)
        self._client.post(routes.AGENT_RESULT.format(run=self.run_id), content=encode(report)).raise_for_status()
        self.send(result)

    def __enter__(self) -> "Replay":
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()
