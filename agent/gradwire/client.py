"""The API as scripts and the `gradwire` command use it: look at runs, set a plan, roll back, wait for the outcome.

The structs hold what is used here; further fields of the server's answers are ignored, so that old clients read new
servers.
"""

import time
from collections.abc import Iterator, Mapping
from typing import TypeVar

import msgspec
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.messages import BaselineRequest, ChangeAnswer, Directive, RollbackRequest, SetRequest
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import Refusal
from msgspec import Struct

from gradwire.errors import AnswerError, UnreachableError
from gradwire.transport.http import ServerLink, clean_server

T = TypeVar("T")

_REQUEST_SECONDS = 15.0
_POLL_SECONDS = 0.2

# States of a change that will not change any more.
FINAL_STATES = ("applied", "rejected", "superseded", "expired")


class Status(Struct, kw_only=True):
    """Whether a run is alive."""

    name: str
    detail: str = ""


class Measure(Struct, kw_only=True):
    """A measured number; without one, the reason."""

    value: float | None = None
    reason: str = ""


class Verdict(Struct, kw_only=True):
    """Whether compression is worth it, by its kind; `share` is the part of a step that waits for transfer."""

    kind: str
    share: Measure
    reason: str = ""


class Run(Struct, kw_only=True):
    """One row of the list of runs."""

    id: str
    name: str
    project: str
    status: Status
    codec: str
    step: int
    total_steps: int | None
    world_size: int
    device: str
    verdict: Verdict


class Change(Struct, kw_only=True):
    """A change that somebody asked for, and how far it is."""

    revision: int
    kind: str
    codec: str
    author: str
    state: str
    reason: str = ""
    seconds: float | None = None
    step: int | None = None
    num_ranks_confirmed: int = 0
    num_ranks: int = 0
    refusals: tuple[Refusal, ...] = ()


class Interval(Measure, kw_only=True):
    """A measured number with its interval."""

    low: float | None = None
    high: float | None = None


class Quality(Struct, kw_only=True):
    """Quality against the chosen baseline: "within_limit", "breach", "cannot_tell" or "no_evidence"."""

    state: str
    # Positive means worse than the baseline, relative.
    drift: Interval
    limit: float
    reason: str = ""
    metric: str = ""
    num_checks: int = 0
    last_step: int | None = None


class RunPage(Struct, kw_only=True):
    """What a run's page shows, as far as it is needed here."""

    summary: Run
    model: str
    plan: PlanSpec
    revision: int
    codec_since_step: int
    num_ranks_confirmed: int
    last_change: Change | None
    is_steered: bool
    changes: tuple[Change, ...] = ()
    quality: Quality | None = None


class _Baseline(Struct, kw_only=True):
    baseline: str | None


class _Runs(Struct, kw_only=True):
    runs: tuple[Run, ...]
    # The id to ask for the next page with; None on the last one.
    next: str | None = None


class Client:
    """Talks to one server with an operator's token; not thread-safe."""

    def __init__(self, server: str, token: str | None) -> None:
        """Connect on the first request.

        Raises:
            SettingError: `server` is not a URL, or httpx is missing.
        """
        self._link = ServerLink(clean_server(server), token)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_error: object) -> None:
        self._link.close()

    def runs(self, page_size: int = 50) -> Iterator[Run]:
        """Yield all runs, newest first, asking for the next page when it is needed.

        Raises:
            AnswerError: The server refuses.
            UnreachableError: It does not answer, or not as a Gradwire server does.
        """
        params: dict[str, str | int] = {"limit": page_size}
        while True:
            page = self._call("GET", routes.RUNS, _Runs, params=params)
            yield from page.runs
            if page.next is None:
                return
            params["before"] = page.next

    def run(self, run: str, model: str | None = None) -> RunPage:
        """Return one run by its id, and of its models the one named or the first.

        Raises:
            AnswerError, UnreachableError: As `runs`.
        """
        params = None if model is None else {"model": model}
        return self._call("GET", routes.RUN.format(run=run), RunPage, params=params)

    def set_plan(self, run: str, request: SetRequest) -> ChangeAnswer:
        """Ask for a plan; nothing is changed until the ranks agree.

        Raises:
            AnswerError: Code "conflict" if the revision is not the present one; otherwise as `runs`.
            UnreachableError: As `runs`.
        """
        return self._call("POST", routes.DIRECTIVES.format(run=run), ChangeAnswer, request)

    def roll_back(self, run: str, request: RollbackRequest) -> ChangeAnswer:
        """Ask for uncompressed training; the answer holds no directive where there is nothing to do.

        Raises:
            AnswerError, UnreachableError: As `runs`.
        """
        return self._call("POST", routes.ROLLBACK.format(run=run), ChangeAnswer, request)

    def choose_baseline(self, run: str, baseline: str) -> None:
        """Have the quality of a run compared with that of another.

        Raises:
            AnswerError, UnreachableError: As `runs`.
        """
        request = BaselineRequest(baseline=baseline)
        self._call("POST", routes.BASELINE.format(run=run), _Baseline, request)

    def page(self, run: str) -> str:
        """Return the address of a run's page for a browser."""
        return f"{self._link.server}/runs/{run}"

    def wait_for(self, run: str, change: Directive, timeout_seconds: float) -> Change | None:
        """Return what became of a change once that is final; what is known of it, or None, after the time-out.

        Raises:
            AnswerError, UnreachableError: As `runs`.
        """
        deadline = time.monotonic() + timeout_seconds
        while True:
            found = _find_change(self.run(run, change.model), change.revision)
            is_final = found is not None and found.state in FINAL_STATES
            if is_final or time.monotonic() >= deadline:
                return found
            time.sleep(_POLL_SECONDS)

    def _call(
        self,
        method: str,
        path: str,
        kind: type[T],
        request: Struct | None = None,
        params: Mapping[str, str | int] | None = None,
    ) -> T:
        body = None if request is None else encode(request)
        answer = self._link.send(method, path, body=body, params=params, timeout_seconds=_REQUEST_SECONDS)
        if not answer.is_success:
            raise AnswerError(answer.status, answer.detail)
        try:
            return msgspec.json.decode(answer.body, type=kind)
        except msgspec.DecodeError as error:
            raise UnreachableError(f"{self._link.server} does not speak as a Gradwire server: {error}") from error


def _find_change(page: RunPage, revision: int) -> Change | None:
    changes = [change for change in (page.last_change, *page.changes) if change is not None]
    return next((change for change in changes if change.revision == revision), None)
