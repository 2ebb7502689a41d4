"""A training of one rank without torch: real reporter, real control, steps by the clock; switches as it is told."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from agent_stream import attempt_started, window
from gradwire.control import Control
from gradwire.transport.node import open_reporter
from gradwire.transport.reporter import DeliverySummary
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import Directive, ResultReport
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import AttemptEnded, NodeFacts, Refusal, Refused, Result, Switched


class ToyTraining:
    """Runs from construction to `close`; `refuse` makes it turn down every set."""

    def __init__(
        self,
        spool: Path,
        server: str | None,
        token: str | None,
        *,
        name: str = "toy",
        run: str | None = None,
        model: str = "model",
        refuse: str = "",
        answers: bool = True,
    ) -> None:
        self.run = run or new_id()
        self.attempt = new_id()
        self.model = model
        self.refuse = refuse
        self.answers = answers
        self.directives: list[Directive] = []
        self.codec = "none"
        self.epoch = 0
        self.step = 0
        self._lock = threading.RLock()
        self._stopping = threading.Event()
        started = attempt_started(run_name=name, node=NodeFacts(host="node-00", ranks=(0,)), world_size=1)
        self.reporter = open_reporter(
            run=self.run,
            attempt=self.attempt,
            model=model,
            node=0,
            rank=0,
            local_ranks=(0,),
            started=started,
            spool_folder=spool,
            server=server,
            token=token,
            on_rollback=self._roll_back_locally,
        )
        self.control = server and Control(
            server=server,
            token=token,
            run=self.run,
            attempt=self.attempt,
            model=model,
            on_directive=self._take,
        )
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    def _train(self) -> None:
        while not self._stopping.wait(0.02):
            with self._lock:
                self.step += 1
                step = window(self.step, num_steps=1, num_rank_steps=1, epoch=self.epoch, codec=self.codec)
                self.reporter.report(step)

    def _take(self, directive: Directive) -> None:
        with self._lock:
            self.directives.append(directive)
            if not self.answers:
                return
            if self.refuse and directive.kind == "set":
                refusal = Refusal(rank=0, host="node-00", reason=self.refuse)
                self._report(
                    Refused(
                        at=time.time(),
                        step=self.step,
                        epoch=self.epoch,
                        revision=directive.revision,
                        refusals=(refusal,),
                    )
                )
                return
            self.switch(directive.plan, "directive", directive)

    def _roll_back_locally(self, reason: str) -> None:
        threading.Thread(target=self.switch, args=(PlanSpec(), "local"), daemon=True).start()

    def switch(self, plan: PlanSpec, cause: str, directive: Directive | None = None) -> None:
        """Use a plan from the next step on and say so."""
        with self._lock:
            self.codec = plan.codec
            self.epoch += 1
            self._report(
                Switched(
                    at=time.time(),
                    step=self.step + 1,
                    epoch=self.epoch,
                    plan=plan,
                    num_ranks=1,
                    cause=cause,  # type: ignore[arg-type]
                    revision=directive.revision if directive else None,
                    is_rollback=directive is None or directive.kind == "rollback",
                )
            )

    def _report(self, result: Result) -> None:
        self.reporter.report(result)
        if self.control:
            self.control.post_result(ResultReport(attempt=self.attempt, model=self.model, result=result))

    def close(self, timeout_seconds: float = 10.0) -> DeliverySummary:
        """Stop training and deliver what is left."""
        self._stopping.set()
        self._thread.join()
        if self.control:
            self.control.close()
        ended = AttemptEnded(at=time.time(), last_step=self.step, status="finished")
        return self.reporter.close(ended, timeout_seconds)

    def __enter__(self) -> "ToyTraining":
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


MakeTraining = Callable[..., ToyTraining]
