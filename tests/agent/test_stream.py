"""The stream against servers that are slow, wrong or gone: nothing lost, nothing doubled, nobody hammered."""

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from agent_stream import attempt_started, window
from gradwire.transport.batches import encode_record
from gradwire.transport.notices import Notices
from gradwire.transport.place import StreamFacts
from gradwire.transport.spool import Spool
from gradwire.transport.stream import Stream
from gradwire_protocol import routes
from gradwire_protocol.coding import decode_batch
from gradwire_protocol.identity import new_id
from gradwire_protocol.records import AttemptStarted, StepWindow
from scripted_server import Heard, Reply, ScriptedServer, accepted, refusal, unused_port, wait_until

TOKEN = "ingest-secret"


class Sender:
    """A spool and its stream; every record is one window, numbered by its first step."""

    def __init__(self, folder: Path, server: str) -> None:
        self.facts = StreamFacts(
            run=new_id(), attempt=new_id(), model="model", node=0, started=attempt_started(), server=server
        )
        self.spool = Spool(folder)
        self.stream = Stream(self.spool, self.facts, server=server, token=TOKEN, notices=Notices())
        self.spool.append(encode_record(self.facts.started), may_use_reserve=True)
        self.stream.start()

    def add(self, *steps: int, urgent: bool = False) -> None:
        for step in steps:
            self.spool.append(encode_record(window(step, num_steps=1)))
        self.stream.wake(urgent)


@pytest.fixture
def make_sender(tmp_path: Path) -> Iterator[Callable[[str], Sender]]:
    made: list[Sender] = []

    def make(server: str) -> Sender:
        made.append(Sender(tmp_path / f"spool-{len(made)}", server))
        return made[-1]

    yield make
    for sender in made:
        sender.stream.stop()
        assert not sender.stream.is_alive()
        sender.spool.close()


def stored_steps(server: ScriptedServer) -> list[int]:
    """Return the first steps of the windows of all batches, each number taken once, as a real server does."""
    batches = {}
    for heard in server.heard:
        if heard.path == routes.BATCHES:
            batches.setdefault(heard.batch.number, heard.batch)
    assert sorted(batches) == list(range(1, len(batches) + 1))
    records = [record for number in sorted(batches) for record in batches[number].records]
    return [record.first_step for record in records if isinstance(record, StepWindow)]


MakeSender = Callable[[str], Sender]


def test_batches_arrive_as_the_server_wants_them(make_sender: MakeSender) -> None:
    with ScriptedServer(accepted) as server:
        sender = make_sender(server.url)
        sender.add(*range(1, 451))
        wait_until(lambda: sender.spool.num_waiting == 0)
        assert stored_steps(server) == list(range(1, 451))
        for heard in server.heard:
            decode_batch(heard.body)
            assert heard.headers["authorization"] == f"Bearer {TOKEN}"
        assert isinstance(server.heard[0].batch.records[0], AttemptStarted)


def test_server_says_how_long_to_wait_between_batches(make_sender: MakeSender) -> None:
    with ScriptedServer(lambda heard: accepted(heard, interval_seconds=0.7)) as server:
        sender = make_sender(server.url)
        server.wait_for(1)
        for step in range(1, 200):
            sender.add(step)
            time.sleep(0.01)
        heard = server.wait_for(3)
        assert all(later.at - earlier.at >= 0.69 for earlier, later in itertools.pairwise(heard))


def test_urgent_record_does_not_wait_for_the_interval(make_sender: MakeSender) -> None:
    with ScriptedServer(lambda heard: accepted(heard, interval_seconds=60.0)) as server:
        sender = make_sender(server.url)
        server.wait_for(1)
        sender.add(1)
        sender.add(2, urgent=True)
        server.wait_for(2, timeout_seconds=10.0)
        assert stored_steps(server) == [1, 2]


def test_connection_is_kept_between_batches(make_sender: MakeSender) -> None:
    with ScriptedServer(accepted) as server:
        sender = make_sender(server.url)
        for step in range(1, 6):
            sender.add(step, urgent=True)
            wait_until(lambda: sender.spool.num_waiting == 0)
        assert len({heard.port for heard in server.heard}) == 1


def test_c31_429_is_obeyed_and_nothing_is_lost_or_doubled(make_sender: MakeSender) -> None:
    """C31 (b): three times 429 with a wait of two seconds, then two errors, then a server that takes it."""
    too_many = refusal(429, "unavailable")
    too_many.headers = {"retry-after": "2"}
    broken = Reply(500, b"<html>sorry</html>")
    with ScriptedServer(too_many, too_many, too_many, broken, broken, accepted) as server:
        sender = make_sender(server.url)
        sender.add(*range(1, 21), urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0, 30.0)
        first, second, third, fourth, fifth, sixth = server.heard[:6]
        for earlier, later in ((first, second), (second, third), (third, fourth)):
            assert later.at - earlier.at >= 2.0
        # By then the delay has grown beyond what one failure asks for.
        assert fifth.at - fourth.at > 0.5
        assert sixth.at - fifth.at > 0.5
        assert {heard.body for heard in server.heard[:6]} == {first.body}, "the same batch, byte for byte"
        assert stored_steps(server) == list(range(1, 21))


def test_urgent_records_do_not_shorten_the_wait_after_a_failure(make_sender: MakeSender) -> None:
    busy = refusal(503, "unavailable")
    busy.headers = {"retry-after": "3"}
    with ScriptedServer(busy, accepted) as server:
        sender = make_sender(server.url)
        server.wait_for(1)
        for step in range(1, 50):
            sender.add(step, urgent=True)
            time.sleep(0.01)
        first, second = server.wait_for(2)[:2]
        assert second.at - first.at >= 3.0


def test_delays_grow_with_failures_and_are_jittered(make_sender: MakeSender) -> None:
    with ScriptedServer(Reply(500)) as server:
        sender = make_sender(server.url)
        heard = server.wait_for(5, timeout_seconds=30.0)
        sender.stream.stop()
        delays = [later.at - earlier.at for earlier, later in itertools.pairwise(heard)]
        for index, delay in enumerate(delays):
            assert delay >= 0.5 * 0.5 * 2**index
        assert len({round(delay / 2**index, 4) for index, delay in enumerate(delays)}) > 1


@pytest.mark.parametrize("status", [401, 403])
def test_refused_token_is_said_once_without_the_token_and_the_data_wait(
    make_sender: MakeSender, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    with caplog.at_level(logging.INFO), ScriptedServer(refusal(status, "unauthorized")) as server:
        sender = make_sender(server.url)
        server.wait_for(1)
        wait_until(lambda: sender.stream.trouble != "")
        for step in range(1, 20):
            sender.add(step, urgent=True)
        assert sender.spool.num_waiting == 20
        assert "GRADWIRE_TOKEN" in sender.stream.trouble
        assert len([record for record in caplog.records if "GRADWIRE_TOKEN" in record.getMessage()]) == 1
        assert TOKEN not in caplog.text
        assert len(server.heard) == 1


def test_server_that_never_answers_holds_up_only_the_stream(make_sender: MakeSender) -> None:
    with ScriptedServer(Reply(delay_seconds=math.inf)) as server:
        sender = make_sender(server.url)
        server.wait_for(1)
        for step in range(1, 1001):
            sender.add(step, urgent=True)
        began = time.monotonic()
        sender.stream.drain(began + 0.5)
        assert not sender.stream.is_alive()
        assert sender.spool.num_waiting == 1001


def test_gap_ahead_is_what_the_server_has_already(make_sender: MakeSender) -> None:
    with ScriptedServer(refusal(409, "gap", wanted=2), accepted) as server:
        sender = make_sender(server.url)
        sender.add(1, urgent=True)
        server.wait_for(1)
        sender.add(2, urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0)
        numbers = [heard.batch.number for heard in server.heard]
        assert numbers == list(range(1, len(numbers) + 1)), "the first is not sent again"


def test_server_that_lost_its_data_is_told_again_whose_stream_it_is(make_sender: MakeSender) -> None:
    with ScriptedServer(accepted) as server:
        sender = make_sender(server.url)
        for step in range(1, 6):
            sender.add(step, urgent=True)
            wait_until(lambda: sender.spool.num_waiting == 0)
        newest = server.heard[-1].batch.number
        cursor = 0

        def forgetful(heard: Heard) -> Reply:
            nonlocal cursor
            if heard.batch.number != cursor + 1:
                return refusal(409, "gap", wanted=cursor + 1)
            cursor += 1
            return accepted(heard)

        num_before = len(server.heard)
        server.then(forgetful)
        sender.add(6, urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0)
        assert cursor == newest + 1
        again = [heard.batch for heard in server.heard[num_before + 1 :]]
        assert [batch.number for batch in again] == list(range(1, newest + 2))
        assert again[0].records == (sender.facts.started,)
        assert all(batch.records == () for batch in again[1:-1])
        (last,) = again[-1].records
        assert isinstance(last, StepWindow)
        assert last.first_step == 6


@pytest.mark.parametrize(
    "answer", [refusal(422, "malformed", field="records[0]"), refusal(413, "too_large"), Reply(413, b"<html>")]
)
def test_batch_the_server_will_never_take_does_not_block_the_stream(
    make_sender: MakeSender, answer: Reply, caplog: pytest.LogCaptureFixture
) -> None:
    with ScriptedServer(answer, accepted) as server:
        sender = make_sender(server.url)
        sender.add(1, 2, urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0)
        sender.add(3, urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0)
        num_lost = len(server.heard[0].batch.records)
        first, second = server.heard[1].batch, server.heard[-1].batch
        assert (first.number, first.num_dropped, first.records) == (1, num_lost, (sender.facts.started,))
        assert second.num_dropped == num_lost
        assert isinstance(second.records[-1], StepWindow)
        assert second.records[-1].first_step == 3
        assert "counts as dropped" in caplog.text


def test_413_of_something_on_the_way_halves_batches_until_they_pass(make_sender: MakeSender) -> None:
    most_bytes = 40_000

    def between(heard: Heard) -> Reply:
        # A proxy of its own mind, which does not speak as the server does.
        return accepted(heard) if len(heard.body) <= most_bytes else Reply(413, b"<html>too large</html>")

    with ScriptedServer(Reply(503)) as server:
        sender = make_sender(server.url)
        sender.add(*range(1, 301), urgent=True)
        server.wait_for(1)
        server.then(between)
        wait_until(lambda: sender.spool.num_waiting == 0, 30.0)
        passed = [heard for heard in server.heard[1:] if len(heard.body) <= most_bytes]
        steps = [
            record.first_step
            for heard in passed
            for record in heard.batch.records
            if isinstance(record, StepWindow)
        ]
        assert steps == list(range(1, 301))
        assert [heard.batch.number for heard in passed] == list(range(1, len(passed) + 1))
        assert sender.spool.num_dropped == 0
        num_heard = len(server.heard)
        sender.add(*range(301, 501), urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0, 30.0)
        later = server.heard[num_heard:]
        assert later
        assert all(len(heard.body) <= most_bytes for heard in later), "what was learned of the way is kept"


def test_server_of_another_protocol_loses_nothing(make_sender: MakeSender) -> None:
    other = refusal(422, "malformed", field="protocol", message="protocol 1; wanted: 2")
    with ScriptedServer(other, other, accepted) as server:
        sender = make_sender(server.url)
        sender.add(1, 2, urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0)
        assert stored_steps(server) == [1, 2]
        assert sender.spool.num_dropped == 0


@pytest.mark.parametrize(
    "answer",
    [
        Reply(200, b"hello"),
        Reply(200, b'{"number":0,"interval_seconds":1}'),
        Reply(204),
        Reply(302, headers={"location": "https://elsewhere/"}),
        Reply(404, b"not here"),
        refusal(409, "gap", wanted=1),
        refusal(409, "closed"),
    ],
)
def test_answer_that_makes_no_sense_loses_nothing(make_sender: MakeSender, answer: Reply) -> None:
    with ScriptedServer(answer, answer, accepted) as server:
        sender = make_sender(server.url)
        sender.add(1, 2, urgent=True)
        wait_until(lambda: sender.spool.num_waiting == 0)
        assert stored_steps(server) == [1, 2]
        assert sender.spool.num_dropped == 0
        assert server.heard[1].at - server.heard[0].at >= 0.25, "nobody is hammered"


def test_draining_delivers_what_is_there_without_waiting_for_the_interval(make_sender: MakeSender) -> None:
    with ScriptedServer(lambda heard: accepted(heard, interval_seconds=60.0)) as server:
        sender = make_sender(server.url)
        server.wait_for(1)
        sender.add(1, 2, 3)
        sender.stream.drain(time.monotonic() + 20.0)
        assert sender.spool.num_waiting == 0
        assert stored_steps(server) == [1, 2, 3]


def test_draining_gives_a_server_known_to_be_gone_one_more_chance(make_sender: MakeSender) -> None:
    sender = make_sender(f"http://127.0.0.1:{unused_port()}")
    wait_until(lambda: sender.stream.trouble != "")
    began = time.monotonic()
    sender.stream.drain(began + 120.0)
    assert time.monotonic() - began < 60.0
    assert sender.spool.num_waiting == 1


def test_draining_waits_for_a_server_that_is_back_in_time(make_sender: MakeSender) -> None:
    with ScriptedServer(accepted) as server:
        sender = make_sender(server.url)
        wait_until(lambda: sender.spool.num_waiting == 0)
        server.then(refusal(503, "unavailable"), refusal(503, "unavailable"), accepted)
        sender.add(1)
        sender.stream.drain(time.monotonic() + 30.0)
        assert sender.spool.num_waiting == 0
        assert stored_steps(server) == [1]
