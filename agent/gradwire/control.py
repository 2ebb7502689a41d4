"""Control: rank 0's connection for directives and results, apart from the stream of measurements."""

import os
import queue
import threading
import time
from collections.abc import Callable

import msgspec
from gradwire_protocol import limits, routes
from gradwire_protocol.coding import encode
from gradwire_protocol.messages import Directive, DirectiveAnswer, ResultReport

from gradwire.errors import UnreachableError
from gradwire.transport.backoff import Backoff
from gradwire.transport.http import ServerLink, clean_server
from gradwire.transport.notices import Notices

# Above the wait the server is asked for, so that an answer on its last moment is not missed.
_POLL_SLACK_SECONDS = 10.0
_RESULT_SECONDS = 10.0

# A server that answers at once with nothing does not wait; it is not asked again at once.
_LEAST_POLL_SECONDS = 1.0

# Results that wait for a server; each is in the stream as well, so the oldest may go.
_MAX_WAITING_RESULTS = 64

# After a refused token: somebody has to do something first.
_SLOW_RETRY_SECONDS = 60.0


class Control:
    """Hears directives and posts results for one model of a run; rank 0 of the whole run only.

    Two threads, which never raise into training; in a forked child nothing happens.
    """

    def __init__(
        self,
        *,
        server: str,
        token: str | None,
        run: str,
        attempt: str,
        model: str,
        on_directive: Callable[[Directive], None],
    ) -> None:
        """Start asking.

        Args:
            server: Base URL.
            token: Ingest token.
            run: UUID of the run.
            attempt: UUID of this start of it; directives of older ones are never handed over.
            model: Name of the attached model.
            on_directive: Called once per directive, by revision, on a thread of the agent; must not block.

        Raises:
            SettingError: `server` is not a URL, or httpx is missing.
        """
        server = clean_server(server)
        self._process = os.getpid()
        self._closing = threading.Event()
        notices = Notices()
        self._listener = _Listener(
            ServerLink(server, token), run, attempt, model, on_directive, notices, self._closing
        )
        self._poster = _Poster(ServerLink(server, token), run, notices, self._closing)
        self._listener.start()
        self._poster.start()

    def post_result(self, report: ResultReport) -> None:
        """Post a result at once, behind earlier ones, and again until the server has it; returns immediately."""
        if os.getpid() == self._process:
            self._poster.put(report)

    def close(self) -> None:
        """Stop asking and posting within a second; what is not posted by then is in the stream."""
        if os.getpid() != self._process:
            return
        self._poster.finish(0.5)
        self._closing.set()
        for thread in (self._listener, self._poster):
            thread.end(0.25)


class _Caller(threading.Thread):
    """A thread that makes one request after another until it is closed."""

    def __init__(self, name: str, link: ServerLink, notices: Notices, closing: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._link = link
        self._notices = notices
        self._closing = closing
        self._backoff = Backoff()

    def run(self) -> None:
        while not self._closing.is_set():
            try:
                self._turn()
            except UnreachableError as error:
                self._fail(str(error))
            except Exception as error:
                self._notices.say(f"{self.name} error", "the agent's control thread met an error", error=error)
                self._fail("an error in the agent, see above")
        self._link.close()

    def end(self, timeout_seconds: float) -> None:
        """Break off the request in flight; only after `closing` is set."""
        if self.is_alive():
            self._link.abort()
            self.join(timeout_seconds)

    def _turn(self) -> None:
        raise NotImplementedError

    def _fail(self, reason: str, *, least_seconds: float = 0.0) -> None:
        seconds = max(self._backoff.fail(), least_seconds)
        if not self._closing.is_set():
            self._notices.say("control", f"no directives at present: {reason}")
            self._closing.wait(seconds)

    def _succeed(self) -> None:
        self._backoff.succeed()
        self._notices.take_back("control", "directives arrive again")


class _Listener(_Caller):
    """Asks for directives with requests that the server holds until there is one."""

    def __init__(
        self,
        link: ServerLink,
        run: str,
        attempt: str,
        model: str,
        on_directive: Callable[[Directive], None],
        notices: Notices,
        closing: threading.Event,
    ) -> None:
        super().__init__("gradwire-directives", link, notices, closing)
        self._path = routes.AGENT_DIRECTIVE.format(run=run)
        self._attempt = attempt
        self._model = model
        self._on_directive = on_directive
        self._after = 0

    def _turn(self) -> None:
        asked_at = time.monotonic()
        answer = self._link.send(
            "GET",
            self._path,
            params={
                "attempt": self._attempt,
                "model": self._model,
                "after": self._after,
                "wait": limits.LONG_POLL_SECONDS,
            },
            timeout_seconds=limits.LONG_POLL_SECONDS + _POLL_SLACK_SECONDS,
        )
        if not answer.is_success:
            is_refused = answer.status in (401, 403)
            least_seconds = _SLOW_RETRY_SECONDS if is_refused else answer.retry_after_seconds
            # The run is unknown until its first batch arrives; that is no trouble.
            if answer.detail.code == "not_found":
                self._closing.wait(self._backoff.fail())
            else:
                self._fail(answer.detail.message, least_seconds=least_seconds)
            return
        directive = msgspec.json.decode(answer.body, type=DirectiveAnswer).directive
        self._succeed()
        if directive is not None and directive.revision > self._after:
            self._after = directive.revision
            self._on_directive(directive)
        elif time.monotonic() - asked_at < _LEAST_POLL_SECONDS:
            self._closing.wait(_LEAST_POLL_SECONDS)


class _Poster(_Caller):
    """Posts results in order."""

    def __init__(self, link: ServerLink, run: str, notices: Notices, closing: threading.Event) -> None:
        super().__init__("gradwire-results", link, notices, closing)
        self._path = routes.AGENT_RESULT.format(run=run)
        self._waiting: queue.Queue[ResultReport | None] = queue.Queue(_MAX_WAITING_RESULTS)
        self._present: ResultReport | None = None

    def put(self, report: ResultReport | None) -> None:
        while True:
            try:
                return self._waiting.put_nowait(report)
            except queue.Full:
                try:
                    self._waiting.get_nowait()
                except queue.Empty:
                    continue

    def finish(self, timeout_seconds: float) -> None:
        """Give results that wait a last chance."""
        self.put(None)
        if self.is_alive():
            self.join(timeout_seconds)

    def _turn(self) -> None:
        if self._present is None:
            self._present = self._waiting.get()
        if self._present is None:
            self._closing.set()
            return
        answer = self._link.send("POST", self._path, body=encode(self._present), timeout_seconds=_RESULT_SECONDS)
        may_change = answer.status in (401, 403, 404, 408, 425, 429) or answer.status >= 500
        if answer.is_success or not may_change:
            if not answer.is_success:
                self._notices.say("result", f"the server does not take a result: {answer.detail.message}")
            self._present = None
            self._backoff.succeed()
            return
        self._fail(answer.detail.message, least_seconds=answer.retry_after_seconds)
