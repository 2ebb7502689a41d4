"""The outlet: where measuring and steering put what the server shall know."""

from gradwire_protocol.messages import ResultReport
from gradwire_protocol.records import AttemptEnded, Event, Points, Record, Result, StepWindow

from gradwire.control import Control
from gradwire.host.network import training_interface
from gradwire.host.watch import HostWatch
from gradwire.losses import Losses
from gradwire.membership import Membership
from gradwire.transport.reporter import DeliverySummary, Reporter


class Outlet:
    """One rank's way to the server: its node's reporter, on rank 0 the control connection, and the node's watch.

    `open` is called once by `attach`, before the first step; every method may then be called from any thread.
    """

    def __init__(self, membership: Membership, model: str, losses: Losses) -> None:
        self._membership = membership
        self._model = model
        self._losses = losses
        self._control: Control | None = None
        self._opened: Reporter | None = None
        self._watch: HostWatch | None = None

    def open(self, reporter: Reporter, control: Control | None) -> None:
        """Connect; both belong to the outlet from now on."""
        self._opened, self._control = reporter, control
        if self._membership.rank == min(self._membership.local_ranks):
            self._watch = HostWatch(training_interface(), reporter.report)

    def on_window(self, window: StepWindow) -> None:
        """Report a finished window and the losses that are known by then."""
        self._reporter.report(window)
        self._report_losses()

    def on_result(self, result: Result, is_reporter: bool) -> None:
        """Pass on what the ranks decided: one rank reports it, the others may announce it on their node."""
        if not is_reporter:
            self._reporter.announce(result)
            return
        self._reporter.report(result, urgent=True)
        if self._control is not None:
            report = ResultReport(attempt=self._membership.attempt, model=self._model, result=result)
            self._control.post_result(report)

    def on_event(self, event: Event) -> None:
        """Report an event of this rank."""
        self._reporter.report(event, urgent=True)

    def on_sample(self, record: Record) -> None:
        """Report what was found on a sample of gradients."""
        self._reporter.report(record)

    def on_points(self, points: Points) -> None:
        """Report values of a user metric."""
        self._reporter.report(points)

    def close(self, ended: AttemptEnded, timeout_seconds: float) -> DeliverySummary:
        """Report the last losses and the end, and deliver what is left."""
        self._report_losses()
        if self._watch is not None:
            self._watch.close()
        if self._control is not None:
            self._control.close()
        return self._reporter.close(ended, timeout_seconds)

    def _report_losses(self) -> None:
        steps, values, weights = self._losses.drain()
        if steps:
            self._reporter.report_loss(steps, values, weights)

    @property
    def _reporter(self) -> Reporter:
        assert self._opened is not None, "attach opens the outlet before the first hook can run"
        return self._opened
