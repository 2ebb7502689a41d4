"""The stream: one thread that takes batches from the spool to the server, one in flight, until all are there."""

import math
import threading
import time

import msgspec
from gradwire_protocol import limits, routes
from gradwire_protocol.messages import BatchAnswer, ErrorDetail

from gradwire.errors import UnreachableError
from gradwire.transport.backoff import Backoff
from gradwire.transport.batches import encode_batch, encode_record
from gradwire.transport.http import Answer, ServerLink
from gradwire.transport.notices import Notices
from gradwire.transport.place import StreamFacts
from gradwire.transport.spool import SealedBatch, Spool

_REQUEST_SECONDS = 10.0

# After a refused token: somebody has to do something first.
_SLOW_RETRY_SECONDS = 60.0

# Answers to a batch that will not change by sending it again; but another protocol means that an upgrade is due.
_REFUSALS = {"malformed", "invalid", "too_large"}
_PROTOCOL_FIELD = "protocol"

# Failures in a row after which draining gives up: about six seconds.
_MAX_DRAIN_FAILURES = 4

# What the server may ask for as the interval between batches, seconds.
_LEAST_INTERVAL_SECONDS = 0.1
_MOST_INTERVAL_SECONDS = 60.0


class Stream(threading.Thread):
    """Delivers one spool; `wake`, `drain` and `stop` may be called from any thread."""

    def __init__(
        self,
        spool: Spool,
        facts: StreamFacts,
        *,
        server: str,
        token: str | None,
        notices: Notices,
        is_late: bool = False,
    ) -> None:
        """Take a spool that stays open for as long as the stream runs, and a URL as `clean_server` returns it.

        `is_late` says that the process that filled the spool is gone.
        """
        super().__init__(name="gradwire-stream", daemon=True)
        self._spool = spool
        self._facts = facts
        self._is_late = is_late
        self._link = ServerLink(server, token)
        self._notices = notices
        self._condition = threading.Condition()
        self._backoff = Backoff()
        self._interval_seconds = limits.WATCHED_INTERVAL_SECONDS
        self._sent_at = -math.inf
        self._retry_at = -math.inf
        self._is_urgent = False
        self._is_stopping = False
        # Set by `drain`: when to be done, and whether the server was failing before.
        self._deadline: float | None = None
        self._was_failing = False
        # The next number that goes out empty, because the server lost what it once acknowledged.
        self._fill_number: int | None = None
        # Why batches are not delivered at present; empty while they are.
        self.trouble = ""

    def wake(self, is_urgent: bool) -> None:
        """Tell that the spool has more; urgent records do not wait for the interval."""
        with self._condition:
            self._is_urgent = self._is_urgent or is_urgent
            self._condition.notify_all()

    def drain(self, deadline: float) -> None:
        """Deliver what is there and end, at `deadline` (`time.monotonic` seconds, inf for none) at the latest.

        Ends early when the server keeps giving no good answer; at once if it gave none before either.
        """
        with self._condition:
            self._deadline = deadline
            self._was_failing = self._backoff.num_failures > 0
            self._condition.notify_all()
        if self.is_alive():
            self.join(None if math.isinf(deadline) else max(0.0, deadline - time.monotonic()))
        self.stop()

    def stop(self) -> None:
        """End now; a request in flight is broken off and its batch stays in the spool."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify_all()
        if self.is_alive():
            self._link.abort()
            self.join(1.0)

    def run(self) -> None:
        """Deliver until stopped or drained; trouble is logged once and never ends the thread."""
        while self._wait_until_due():
            try:
                self._deliver_next()
            except Exception as error:
                self._notices.say("stream", "the sending thread met an error and goes on", error=error)
                self._fail("an error in the agent, see the training's log")
        self._link.close()

    def _wait_until_due(self) -> bool:
        with self._condition:
            while not self._is_stopping:
                due_at, now = self._due_at(), time.monotonic()
                is_idle = math.isinf(due_at) and due_at > 0
                if self._deadline is not None and (is_idle or due_at > self._deadline):
                    return False
                if due_at <= now:
                    return True
                self._condition.wait(None if is_idle else due_at - now)
            return False

    def _due_at(self) -> float:
        if not (self._spool.has_sealed or self._spool.has_open):
            return math.inf
        waits = not (self._spool.has_sealed or self._is_urgent or self._deadline is not None)
        return max(self._sent_at + self._interval_seconds if waits else -math.inf, self._retry_at)

    def _deliver_next(self) -> None:
        with self._condition:
            self._is_urgent = False
        batch = self._spool.next_batch()
        if batch is None:
            self._fail("the spool's disk takes nothing")
            return
        if self._fill_number is not None and self._fill_number >= batch.number:
            self._fill_number = None
        if self._fill_number is not None or not batch.records:
            batch = self._filler(self._fill_number or batch.number)
        try:
            answer = self._link.send(
                "POST",
                routes.BATCHES,
                body=encode_batch(self._facts, batch, is_late=self._is_late),
                timeout_seconds=self._request_seconds(),
            )
        except UnreachableError as error:
            self._fail(str(error))
            return
        self._take_answer(batch, answer)

    def _filler(self, number: int) -> SealedBatch:
        """Return what goes out under a number whose records are lost; the first still says whose stream it is."""
        records = (encode_record(self._facts.started),) if number == 1 else ()
        return SealedBatch(number, self._spool.num_dropped, 0, records)

    def _request_seconds(self) -> float:
        if self._deadline is None:
            return _REQUEST_SECONDS
        return min(_REQUEST_SECONDS, max(0.1, self._deadline - time.monotonic()))

    def _take_answer(self, batch: SealedBatch, answer: Answer) -> None:
        if answer.is_success:
            self._take_acknowledgement(batch, answer)
            return
        detail = answer.detail
        if detail.code == "gap" and detail.wanted is not None and detail.wanted != batch.number:
            self._follow(batch, detail.wanted)
        elif answer.status == 413 and self._spool.split(batch.number):
            self._notices.say("too large", "something on the way takes only smaller batches; they are made now")
        elif batch.weight > 0 and _is_refusal(answer.status, detail):
            self._notices.say("refused", f"the server refused a batch, which counts as dropped: {detail.message}")
            self._spool.give_up(batch.number)
        elif answer.status in (401, 403):
            self._fail(
                f"the server does not accept the token (GRADWIRE_TOKEN): {detail.message}",
                least_seconds=_SLOW_RETRY_SECONDS,
            )
        else:
            self._fail(f"{self._link.server}: {detail.message}", least_seconds=answer.retry_after_seconds)

    def _take_acknowledgement(self, batch: SealedBatch, answer: Answer) -> None:
        try:
            acknowledged = msgspec.json.decode(answer.body, type=BatchAnswer)
        except msgspec.DecodeError:
            acknowledged = None
        if acknowledged is None or acknowledged.number < batch.number:
            self._fail(f"{self._link.server} does not answer as a Gradwire server does")
            return
        self._spool.acknowledge(acknowledged.number)
        if self._fill_number is not None:
            self._fill_number = acknowledged.number + 1
        seconds = acknowledged.interval_seconds
        self._interval_seconds = min(max(seconds, _LEAST_INTERVAL_SECONDS), _MOST_INTERVAL_SECONDS)
        self._sent_at = time.monotonic()
        self._retry_at = -math.inf
        self._backoff.succeed()
        self.trouble = ""
        self._notices.take_back("delivery", "the server takes measurements again; nothing that was kept is lost")

    def _follow(self, batch: SealedBatch, wanted: int) -> None:
        """Go on where the server wants: ahead if it has more than we know, back if it lost what it had."""
        if wanted > batch.number:
            self._spool.acknowledge(wanted - 1)
            return
        if self._fill_number is None:
            self._notices.say(
                "gap",
                f"the server lost batches {wanted} to {batch.number - 1}, which it had acknowledged; "
                "they cannot be sent again, later ones are",
            )
        self._fill_number = wanted

    def _fail(self, reason: str, *, least_seconds: float = 0.0) -> None:
        seconds = max(self._backoff.fail(), least_seconds)
        self.trouble = reason
        with self._condition:
            self._retry_at = time.monotonic() + seconds
            # At the end of training a server that was away before gets one more chance, not all the time there is.
            if self._deadline is not None and (
                self._was_failing or self._backoff.num_failures >= _MAX_DRAIN_FAILURES
            ):
                self._is_stopping = True
        self._notices.say("delivery", f"{reason}; measurements wait in {self._spool.folder}, training goes on")


def _is_refusal(status: int, detail: ErrorDetail) -> bool:
    return status == 413 or (detail.code in _REFUSALS and detail.field != _PROTOCOL_FIELD)
