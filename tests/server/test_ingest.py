import json
import time
from collections.abc import Iterator

import httpx
import msgspec
import pytest
from agent_stream import AgentStream, losses, plan, window
from gradwire_protocol import limits, routes
from gradwire_protocol.coding import encode
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import SetRequest
from gradwire_protocol.records import Event, NodeFacts, Points, Refusal, Refused, Switched
from server_process import ServerProcess
from stored import count, history, kinds, model_row, rows, run_row


def error(answer: httpx.Response) -> dict[str, object]:
    detail: dict[str, object] = answer.json()["error"]
    return detail


def node_row(server: ServerProcess, stream: AgentStream) -> dict[str, object]:
    (row,) = rows(server.database_path, "SELECT * FROM nodes WHERE attempt = ?", stream.attempt)
    return row


def test_batch_sent_five_times_is_stored_once(server: ServerProcess, stream: AgentStream) -> None:
    batch = stream.batch(window(0), losses(0, [3.0, 2.5]))
    answers = [stream.post(batch) for _ in range(5)]
    assert [answer.status_code for answer in answers] == [200] * 5
    assert {answer.json()["number"] for answer in answers} == {2}
    assert count(server.database_path, "step_windows", stream.run) == 1
    assert count(server.database_path, "points", stream.run) == 2


def test_what_was_stored_first_stays_when_a_number_comes_again_changed(
    server: ServerProcess, stream: AgentStream
) -> None:
    stream.post(stream.batch(losses(0, [3.0])))
    assert stream.post(stream.batch(losses(0, [9.0]))).status_code == 200
    (point,) = rows(server.database_path, "SELECT value FROM points WHERE run = ?", stream.run)
    assert point["value"] == 3.0


def test_older_batch_is_answered_with_the_cursor(stream: AgentStream) -> None:
    stream.send(window(0))
    stream.send(window(10))
    answer = stream.post(stream.batch(window(0), number=2))
    assert (answer.status_code, answer.json()["number"]) == (200, 3)


def test_gap_names_the_number_to_go_on_with(server: ServerProcess, stream: AgentStream) -> None:
    answer = stream.post(stream.batch(window(0), number=7))
    assert (answer.status_code, error(answer)["code"], error(answer)["wanted"]) == (409, "gap", 2)
    assert count(server.database_path, "step_windows", stream.run) == 0
    stream.send(window(0))


def test_stream_that_is_unknown_is_wanted_from_its_beginning(server: ServerProcess) -> None:
    stream = AgentStream(server.agent())
    answer = stream.post(stream.batch(window(0), number=4))
    assert (answer.status_code, error(answer)["code"], error(answer)["wanted"]) == (409, "gap", 1)


def test_stream_that_begins_without_facts_is_refused(server: ServerProcess) -> None:
    stream = AgentStream(server.agent())
    answer = stream.post(stream.batch(window(0)))
    assert (answer.status_code, error(answer)["code"], error(answer)["field"]) == (422, "malformed", "records[0]")
    assert rows(server.database_path, "SELECT id FROM runs WHERE id = ?", stream.run) == []


def test_facts_in_the_middle_are_refused_and_nothing_of_the_batch_is_stored(
    server: ServerProcess, stream: AgentStream
) -> None:
    answer = stream.post(stream.batch(window(0), stream.facts))
    assert (answer.status_code, error(answer)["field"]) == (422, "records[1]")
    assert count(server.database_path, "step_windows", stream.run) == 0
    stream.send(window(0))


def test_values_are_stored_exactly_and_nonfinite_ones_keep_their_kind(
    server: ServerProcess, stream: AgentStream
) -> None:
    values = (0.1, None, 1e308, 5e-324, None, None)
    points = Points(name="loss", steps=tuple(range(6)), values=values, kinds={"1": "nan", "4": "+inf", "5": "-inf"})
    stream.send(points, msgspec.structs.replace(points, name="a", steps=(2**53 + 1,), values=(0.5,), kinds={}))
    query = "SELECT step, value, kind FROM points WHERE run = ? AND name = ? ORDER BY step"
    stored = rows(server.database_path, query, stream.run, "loss")
    assert [row["value"] for row in stored] == list(values)
    assert [row["kind"] for row in stored] == [None, "nan", None, None, "+inf", "-inf"]
    assert rows(server.database_path, query, stream.run, "a")[0]["step"] == 2**53 + 1


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        (("number",), 0, "number"),
        (("run",), "not-a-uuid", "run"),
        (("model",), "a\x00b", "model"),
        (("protocol",), 99, "protocol"),
        (("records", 0, "steps", 0), 2**63, "records[0].steps[0]"),
        (("records", 0, "steps", 0), -1, "records[0].steps[0]"),
        (("records", 0, "steps", 0), 1.5, "records[0].steps[...]"),
        (("records", 0, "steps", 0), "abc", "records[0].steps[...]"),
        (("records", 0, "values", 0), "abc", "records[0].values[...]"),
        (("records", 0, "name"), "   ", "records[0].name"),
        (("records", 0, "type"), "unheard_of", "records[...].type"),
    ],
)
def test_malformed_batch_is_refused_by_name_of_the_field(
    server: ServerProcess, stream: AgentStream, path: tuple[str | int, ...], value: object, field: str
) -> None:
    body = json.loads(encode(stream.batch(losses(0, [1.0, 2.0]))))
    place = body
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    answer = stream.post(json.dumps(body).encode())
    assert (answer.status_code, error(answer)["code"]) == (422, "malformed")
    assert error(answer)["field"] in (field, field.replace("[...]", "[0]"))
    assert count(server.database_path, "points", stream.run) == 0
    stream.send(losses(0, [1.0, 2.0]))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'{"run": NaN}', b"[" * 100_000, b"\xff\xfe"])
def test_body_that_is_no_batch_is_malformed(stream: AgentStream, body: bytes) -> None:
    answer = stream.post(body)
    assert (answer.status_code, error(answer)["code"]) == (422, "malformed")


def test_body_over_limit_is_refused_with_the_limit(stream: AgentStream) -> None:
    answer = stream.post(b"[" * (limits.MAX_BODY_BYTES + 1))
    assert (answer.status_code, error(answer)["limit"]) == (413, limits.MAX_BODY_BYTES)


def test_chunked_body_over_limit_is_refused_before_it_is_complete(stream: AgentStream) -> None:
    sent = 0

    def endless() -> Iterator[bytes]:
        nonlocal sent
        while sent < 200 * limits.MAX_BODY_BYTES:
            sent += 65536
            yield b" " * 65536

    try:
        answer = stream.client.post(routes.BATCHES, content=endless())
    except httpx.TransportError:
        # The server has answered and hung up while we were still sending.
        pass
    else:
        assert answer.status_code == 413
    assert sent < 100 * limits.MAX_BODY_BYTES
    stream.send(window(0))


def test_compressed_body_is_refused(stream: AgentStream) -> None:
    answer = stream.client.post(routes.BATCHES, content=b"\x1f\x8b", headers={"Content-Encoding": "gzip"})
    assert (answer.status_code, error(answer)["field"]) == (422, "content-encoding")


def test_too_many_records_are_refused_with_the_limit(stream: AgentStream) -> None:
    answer = stream.post(stream.batch(*[losses(0, [1.0])] * (limits.MAX_BATCH_RECORDS + 1)))
    assert (answer.status_code, error(answer)["limit"]) == (413, limits.MAX_BATCH_RECORDS)


@pytest.mark.parametrize(
    ("token", "status", "code"),
    [
        (None, 401, "unauthorized"),
        ("wrong", 401, "unauthorized"),
        ("ü", 401, "unauthorized"),
        ("operator", 403, "forbidden"),
    ],
)
def test_only_ingest_tokens_send_batches(
    server: ServerProcess, stream: AgentStream, token: str | None, status: int, code: str
) -> None:
    secret = server.operator_token if token == "operator" else token
    headers = {} if secret is None else {"Authorization": f"Bearer {secret}".encode()}
    answer = server.anonymous().post(routes.BATCHES, content=encode(stream.batch(window(0))), headers=headers)
    assert (answer.status_code, error(answer)["code"]) == (status, code)
    assert "ingest" in str(error(answer)["message"])
    assert count(server.database_path, "step_windows", stream.run) == 0


def test_names_with_markup_and_unusual_letters_are_kept_as_they_are(server: ServerProcess) -> None:
    name = "<script>alert(1)</script> größe ✓ 实验 \u2028 \u202eabc"
    stream = AgentStream(server.agent(), run_name=name, project="<b>x</b>", model="<i>m</i>")
    stream.begin(Event(at=0.0, step=1, kind="note", message="</script><img src=x onerror=alert(1)>"))
    row = run_row(server.database_path, stream.run)
    assert (row["name"], row["project"]) == (name, "<b>x</b>")
    assert history(server.database_path, stream.run)[-1]["message"] == "</script><img src=x onerror=alert(1)>"
    assert model_row(server.database_path, stream.run, "<i>m</i>")["attempt"] == stream.attempt


def test_interval_is_short_while_a_change_is_open_and_long_otherwise(
    server: ServerProcess, stream: AgentStream
) -> None:
    assert stream.send(window(0)) == limits.IDLE_INTERVAL_SECONDS
    body = encode(SetRequest(plan=plan("int8"), revision=0))
    assert server.operator().post(routes.DIRECTIVES.format(run=stream.run), content=body).status_code == 202
    assert stream.send(window(10)) == limits.WATCHED_INTERVAL_SECONDS
    directive = stream.wait_directive(wait=0)
    assert directive is not None
    stream.report(stream.switched(directive, step=30))
    assert stream.send(window(20)) == limits.IDLE_INTERVAL_SECONDS


def two_nodes(server: ServerProcess) -> tuple[AgentStream, AgentStream]:
    """Return the begun streams of an attempt with two ranks on each of two nodes."""
    first = AgentStream(server.agent(), world_size=4)
    facts = NodeFacts(host="node-01", ranks=(2, 3))
    of_run = {"run": first.run, "attempt": first.attempt}
    second = AgentStream(server.agent(), **of_run, node=2, node_facts=facts, world_size=4)
    first.begin()
    second.begin()
    return first, second


def test_second_node_joins_the_attempt(server: ServerProcess) -> None:
    first = AgentStream(server.agent(), world_size=4)
    first.begin()
    facts = NodeFacts(host="node-01", ranks=(2, 3))
    second = AgentStream(
        server.agent(), run=first.run, attempt=first.attempt, node=2, node_facts=facts, world_size=4
    )
    second.begin()
    second.send(window(0))
    assert kinds(server.database_path, first.run) == ["attempt_started"]
    nodes = rows(server.database_path, "SELECT * FROM nodes WHERE attempt = ? ORDER BY node", first.attempt)
    assert [(node["host"], node["cursor"]) for node in nodes] == [("node-00", 1), ("node-01", 2)]


def test_attempt_of_another_run_is_refused(server: ServerProcess, stream: AgentStream) -> None:
    other = AgentStream(server.agent(), attempt=stream.attempt)
    answer = other.post(other.batch(other.facts))
    assert (answer.status_code, error(answer)["field"]) == (422, "attempt")
    assert rows(server.database_path, "SELECT id FROM runs WHERE id = ?", other.run) == []


def test_new_attempt_becomes_current_and_expires_what_was_open(server: ServerProcess, stream: AgentStream) -> None:
    body = encode(SetRequest(plan=plan("int8"), revision=0))
    assert server.operator().post(routes.DIRECTIVES.format(run=stream.run), content=body).status_code == 202
    time.sleep(0.002)  # Ids order attempts by the millisecond.
    again = AgentStream(server.agent(), run=stream.run, start_step=50, plan=plan("bf16"))
    again.begin()
    assert kinds(server.database_path, stream.run) == ["attempt_started", "requested", "expired", "attempt_started"]
    row = model_row(server.database_path, stream.run)
    assert (row["attempt"], row["plan"]["codec"], row["since_step"]) == (again.attempt, "bf16", 50)
    assert row["revision"] == 2
    assert again.wait_directive(wait=0) is None
    assert stream.wait_directive(wait=0) is None
    attempts = rows(server.database_path, "SELECT number FROM attempts WHERE run = ? ORDER BY number", stream.run)
    assert [row["number"] for row in attempts] == [1, 2]


def test_attempt_that_is_delivered_after_its_successor_does_not_become_current(server: ServerProcess) -> None:
    older = AgentStream(server.agent())
    time.sleep(0.002)
    newer = AgentStream(server.agent(), run=older.run)
    newer.begin()
    older.begin(window(0))
    older.end(last_step=9, status="failed", exception="RuntimeError")
    row = run_row(server.database_path, older.run)
    assert (row["current_attempt"], row["final_status"]) == (newer.attempt, None)
    assert model_row(server.database_path, older.run)["attempt"] == newer.attempt


def test_finished_run_lives_again_with_a_new_attempt(server: ServerProcess, stream: AgentStream) -> None:
    stream.end(last_step=10)
    assert run_row(server.database_path, stream.run)["final_status"] == "finished"
    time.sleep(0.002)
    AgentStream(server.agent(), run=stream.run, start_step=10).begin()
    assert run_row(server.database_path, stream.run)["final_status"] is None


def test_run_ends_with_the_word_of_rank_0s_node_and_the_worst_word_stays(server: ServerProcess) -> None:
    first = AgentStream(server.agent(), world_size=4)
    first.begin()
    facts = NodeFacts(host="node-01", ranks=(2, 3))
    second = AgentStream(
        server.agent(), run=first.run, attempt=first.attempt, node=2, node_facts=facts, world_size=4
    )
    second.begin()
    first.end(last_step=10)
    assert run_row(server.database_path, first.run)["final_status"] == "finished"
    second.end(last_step=9, status="failed", exception="RuntimeError")
    row = run_row(server.database_path, first.run)
    assert (row["final_status"], row["status_detail"]) == ("failed", "RuntimeError")


def test_late_batch_is_stored_and_no_sign_of_life(server: ServerProcess, stream: AgentStream) -> None:
    seen_at = run_row(server.database_path, stream.run)["last_seen_at"]
    late = msgspec.structs.replace(stream.batch(window(10, started_at=2000.0, wall_seconds=5.0)), is_late=True)
    assert stream.post(late).status_code == 200
    assert count(server.database_path, "step_windows", stream.run) == 1
    assert run_row(server.database_path, stream.run)["last_seen_at"] == seen_at
    assert node_row(server, stream)["last_seen_at"] == seen_at
    received = rows(server.database_path, "SELECT received_at FROM step_windows WHERE run = ?", stream.run)
    assert {row["received_at"] for row in received} == {2005.0}


def test_run_that_is_heard_of_after_its_death_is_not_alive(server: ServerProcess) -> None:
    dead = AgentStream(server.agent(), at=1000.0)
    assert dead.post(msgspec.structs.replace(dead.batch(dead.facts), is_late=True)).status_code == 200
    assert run_row(server.database_path, dead.run)["last_seen_at"] == 1000.0
    assert node_row(server, dead)["last_seen_at"] == 1000.0


def test_batch_moves_the_moment_its_node_was_heard_of(server: ServerProcess, stream: AgentStream) -> None:
    seen_at = node_row(server, stream)["last_seen_at"]
    stream.send(window(0))
    assert node_row(server, stream)["last_seen_at"] > seen_at


def test_node_that_fails_ends_the_attempt_whatever_others_say(server: ServerProcess) -> None:
    first = AgentStream(server.agent(), world_size=4)
    first.begin()
    facts = NodeFacts(host="node-01", ranks=(2, 3))
    second = AgentStream(
        server.agent(), run=first.run, attempt=first.attempt, node=2, node_facts=facts, world_size=4
    )
    second.begin()
    second.end(last_step=9, status="failed", exception="ValueError")
    row = run_row(server.database_path, first.run)
    assert (row["final_status"], row["status_detail"]) == ("failed", "ValueError")
    first.end(last_step=9, status="failed", exception="RuntimeError")
    assert run_row(server.database_path, first.run)["status_detail"] == "ValueError"


def test_run_goes_on_when_only_another_node_has_ended(server: ServerProcess) -> None:
    first = AgentStream(server.agent(), world_size=4)
    first.begin()
    facts = NodeFacts(host="node-01", ranks=(2, 3))
    second = AgentStream(
        server.agent(), run=first.run, attempt=first.attempt, node=2, node_facts=facts, world_size=4
    )
    second.begin()
    second.end(last_step=9)
    assert run_row(server.database_path, first.run)["final_status"] is None


def test_run_with_two_models_ends_with_the_second(server: ServerProcess) -> None:
    first = AgentStream(server.agent(), model="generator")
    first.begin()
    second = AgentStream(server.agent(), run=first.run, attempt=first.attempt, model="critic")
    second.begin()
    first.end(last_step=10)
    assert run_row(server.database_path, first.run)["final_status"] is None
    second.end(last_step=10)
    assert run_row(server.database_path, first.run)["final_status"] == "finished"


def guard_rollback(epoch: int) -> Switched:
    return Switched(
        at=0.0, step=40, epoch=epoch, plan=plan("none"), num_ranks=2, cause="guard", is_rollback=True, reason="NaN"
    )


def test_switch_that_nobody_asked_for_moves_the_revision(server: ServerProcess) -> None:
    stream = AgentStream(server.agent(), plan=plan("int8"))
    stream.begin(guard_rollback(1))
    row = model_row(server.database_path, stream.run)
    assert (row["plan"]["codec"], row["epoch"], row["revision"], row["since_step"]) == ("none", 1, 1, 40)
    audit = rows(server.database_path, "SELECT * FROM audit WHERE run = ?", stream.run)
    assert [(row["actor"], row["action"], row["reason"]) for row in audit] == [("guard", "rollback", "NaN")]


@pytest.mark.parametrize("first", ["report", "stream"])
def test_result_that_comes_twice_counts_once(server: ServerProcess, stream: AgentStream, first: str) -> None:
    results = [guard_rollback(1), guard_rollback(2)]
    refused = Refused(
        at=0.0, step=9, epoch=0, revision=5, refusals=(Refusal(rank=1, host="h", reason="no memory"),)
    )
    for result in (*results, refused):
        if first == "report":
            stream.report(result)
            stream.report(result)
            stream.send(result)
        else:
            stream.send(result)
            stream.report(result)
    assert kinds(server.database_path, stream.run) == ["attempt_started", "switched", "switched", "refused"]
    assert model_row(server.database_path, stream.run)["epoch"] == 2


def test_result_whose_report_was_lost_is_counted_though_a_later_one_came_first(
    server: ServerProcess, stream: AgentStream
) -> None:
    stream.report(guard_rollback(2))
    stream.send(guard_rollback(1), guard_rollback(2))
    epochs = [event["data"].get("epoch") for event in history(server.database_path, stream.run)]
    assert epochs == [None, 2, 1]
    assert model_row(server.database_path, stream.run)["epoch"] == 2


def test_report_of_an_unknown_attempt_is_not_found(server: ServerProcess, stream: AgentStream) -> None:
    stream.attempt = new_id()
    with pytest.raises(AssertionError, match="has no attempt"):
        stream.report(guard_rollback(1))


def test_events_are_numbered_without_gaps(server: ServerProcess, stream: AgentStream) -> None:
    events = [Event(at=0.0, step=step, kind="note", message=f"line {step}") for step in range(50)]
    stream.send(*events[:20])
    stream.send(*events[20:])
    numbers = [event["number"] for event in history(server.database_path, stream.run)]
    assert numbers == list(range(1, 52))
    assert run_row(server.database_path, stream.run)["last_event"] == 51
