import threading
import time

import httpx
import msgspec
import pytest
from agent_stream import AgentStream, plan, window
from gradwire_protocol import routes
from gradwire_protocol.coding import encode
from gradwire_protocol.identity import new_id
from gradwire_protocol.messages import ChangeAnswer, Directive, ReasonRequest, RollbackRequest, SetRequest
from gradwire_protocol.plans import PlanSpec
from gradwire_protocol.records import Refusal, Refused
from server_inside import inside_server
from server_process import ServerProcess
from stored import directive_states, history, kinds, model_row, rows


class Operator:
    """Asks for changes of one run as a script does."""

    def __init__(self, client: httpx.Client, run: str) -> None:
        self.client = client
        self.run = run

    def set(self, codec: str | PlanSpec, revision: int, **more: str) -> httpx.Response:
        asked = plan(codec) if isinstance(codec, str) else codec
        return self._post(routes.DIRECTIVES, SetRequest(plan=asked, revision=revision, **more))

    def roll_back(self, **more: str) -> httpx.Response:
        return self._post(routes.ROLLBACK, RollbackRequest(**more))

    def give_reason(self, revision: int, reason: str) -> httpx.Response:
        path = routes.DIRECTIVE_REASON.format(run=self.run, revision=revision)
        return self.client.post(path, content=encode(ReasonRequest(reason=reason)))

    def _post(self, path: str, message: object) -> httpx.Response:
        return self.client.post(path.format(run=self.run), content=encode(message))


@pytest.fixture
def operator(server: ServerProcess, stream: AgentStream) -> Operator:
    return Operator(server.operator(), stream.run)


def made(answer: httpx.Response) -> Directive:
    """Return the directive of an accepted change."""
    assert answer.status_code == 202, answer.text
    change = msgspec.json.decode(answer.content, type=ChangeAnswer)
    assert change.is_new
    assert change.directive is not None
    return change.directive


def error(answer: httpx.Response) -> dict[str, object]:
    detail: dict[str, object] = answer.json()["error"]
    return detail


def applied(stream: AgentStream, answer: httpx.Response, *, step: int) -> Directive:
    """Let the training apply the change that was just made."""
    directive = stream.wait_directive(after=made(answer).revision - 1, wait=5)
    assert directive is not None
    stream.report(stream.switched(directive, step=step))
    return directive


def test_change_is_requested_delivered_and_applied(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    answer = operator.set("int8", 0, reason="trying it")
    directive = made(answer)
    assert (directive.revision, directive.author, directive.epoch) == (1, "operator", 0)
    assert directive.plan.parameters == {"block": 256}
    assert directive_states(server.database_path, stream.run) == ["requested"]
    fetched = stream.wait_directive()
    assert fetched == directive
    assert directive_states(server.database_path, stream.run) == ["delivered"]
    stream.report(stream.switched(directive, step=120))
    (row,) = rows(server.database_path, "SELECT * FROM directives WHERE run = ?", stream.run)
    assert (row["state"], row["applied_step"], row["num_ranks_confirmed"]) == ("applied", 120, 2)
    assert row["requested_at"] <= row["delivered_at"] <= row["answered_at"]
    model = model_row(server.database_path, stream.run)
    assert (model["plan"]["codec"], model["epoch"], model["revision"]) == ("int8", 1, 1)
    assert kinds(server.database_path, stream.run) == ["attempt_started", "requested", "delivered", "switched"]
    assert history(server.database_path, stream.run)[-1]["data"]["author"] == "operator"
    (audit,) = rows(server.database_path, "SELECT * FROM audit WHERE run = ?", stream.run)
    assert (audit["actor"], audit["action"], audit["reason"]) == ("operator", "set", "trying it")


def test_waiting_agent_gets_a_change_while_it_waits(stream: AgentStream, operator: Operator) -> None:
    found: list[Directive | None] = []
    waiting = threading.Thread(target=lambda: found.append(stream.wait_directive()))
    waiting.start()
    time.sleep(0.3)
    directive = made(operator.set("int8", 0))
    waiting.join(10)
    assert found == [directive]


def test_wait_ends_empty_handed(stream: AgentStream) -> None:
    assert stream.wait_directive(wait=0.2) is None


def test_agent_that_knows_a_revision_is_not_given_it_again(stream: AgentStream, operator: Operator) -> None:
    made(operator.set("int8", 0))
    assert stream.wait_directive(after=1, wait=0) is None
    assert stream.wait_directive(after=0, wait=0) is not None
    # The answer was lost on its way: asking again is answered again.
    assert stream.wait_directive(after=0, wait=0) is not None


def test_change_of_an_attempt_that_nothing_is_known_of_is_waited_for(server: ServerProcess) -> None:
    assert AgentStream(server.agent()).wait_directive(wait=0.1) is None


def test_stale_revision_is_a_conflict_with_state_and_author(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    directive = made(operator.set("bf16", 0))
    answer = operator.set("int8", 0)
    assert (answer.status_code, error(answer)["code"], error(answer)["wanted"]) == (409, "conflict", 1)
    assert msgspec.convert(error(answer)["current"], Directive) == directive
    assert "operator" in str(error(answer)["message"])
    assert directive_states(server.database_path, stream.run) == ["requested"]


def test_revision_from_before_the_trainings_own_switch_is_a_conflict(
    stream: AgentStream, operator: Operator
) -> None:
    switched = applied(stream, operator.set("int8", 0), step=5)
    rollback = msgspec.structs.replace(
        stream.switched(switched, step=9), plan=plan("none"), cause="guard", revision=None, is_rollback=True
    )
    stream.report(rollback)
    answer = operator.set("bf16", 1)
    assert (answer.status_code, error(answer)["wanted"], error(answer)["current"]) == (409, 2, None)
    assert "training itself" in str(error(answer)["message"])
    assert made(operator.set("bf16", 2)).revision == 3


def test_change_without_a_revision_is_refused(server: ServerProcess, stream: AgentStream) -> None:
    path = routes.DIRECTIVES.format(run=stream.run)
    answer = server.operator().post(path, content=b'{"plan": {"codec": "int8"}}')
    assert (answer.status_code, error(answer)["code"], error(answer)["field"]) == (422, "malformed", "revision")
    assert directive_states(server.database_path, stream.run) == []


@pytest.mark.parametrize(
    ("asked", "field", "words"),
    [
        (PlanSpec(codec="zip"), "plan.codec", "known codecs"),
        (PlanSpec(codec="<script>"), "plan.codec", "known codecs"),
        (PlanSpec(codec="int8", parameters={"block": 1}), "plan.parameters.block", "64"),
        (PlanSpec(codec="int8", parameters={"path": 1}), "plan.parameters.path", "block"),
        (PlanSpec(codec="int8", min_elements=-1), "plan.min_elements", "0 or more"),
    ],
)
def test_plan_outside_the_catalogue_is_refused(
    server: ServerProcess, stream: AgentStream, operator: Operator, asked: PlanSpec, field: str, words: str
) -> None:
    answer = operator.set(asked, 0)
    assert (answer.status_code, error(answer)["code"], error(answer)["field"]) == (422, "malformed", field)
    assert words in str(error(answer)["message"])
    assert directive_states(server.database_path, stream.run) == []


def test_codec_that_the_attempt_refuses_needs_force(stream: AgentStream, operator: Operator) -> None:
    answer = operator.set("onebit", 0)
    assert (answer.status_code, error(answer)["code"], error(answer)["field"]) == (422, "invalid", "plan.codec")
    message = str(error(answer)["message"])
    assert "do not converge under AdamW" in message
    assert "use int8" in message
    assert made(operator.set(PlanSpec(codec="onebit", force=True), 0)).plan.force


def test_codec_that_the_attempt_cannot_run_is_refused(server: ServerProcess) -> None:
    stream = AgentStream(server.agent(), codecs=("none", "bf16"))
    stream.begin()
    answer = Operator(server.operator(), stream.run).set(PlanSpec(codec="int8", force=True), 0)
    assert (answer.status_code, error(answer)["field"]) == (422, "plan.codec")
    assert "none, bf16" in str(error(answer)["message"])


def test_newer_change_supersedes_the_open(server: ServerProcess, stream: AgentStream, operator: Operator) -> None:
    made(operator.set("bf16", 0))
    made(operator.set("int8", 1))
    assert directive_states(server.database_path, stream.run) == ["superseded", "requested"]
    fetched = stream.wait_directive(wait=0)
    assert fetched is not None
    assert fetched.plan.codec == "int8"


def test_superseded_change_that_was_applied_after_all_says_so(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    directive = made(operator.set("bf16", 0))
    made(operator.set("int8", 1))
    stream.report(stream.switched(directive, step=3))
    assert directive_states(server.database_path, stream.run) == ["applied", "requested"]


def test_refusal_rejects_the_change_and_names_the_rank(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    directive = made(operator.set("int8", 0))
    refusal = Refusal(rank=1, host="node-00", reason="no memory for 8 MB of residuals")
    stream.report(Refused(at=0.0, step=7, epoch=0, revision=directive.revision, refusals=(refusal,)))
    assert directive_states(server.database_path, stream.run) == ["rejected"]
    assert model_row(server.database_path, stream.run)["plan"]["codec"] == "none"
    assert "rank 1 on node-00 refused: no memory" in history(server.database_path, stream.run)[-1]["message"]
    assert made(operator.set("bf16", directive.revision)).revision == 2


def test_rollback_needs_no_revision_and_twice_is_once(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    applied(stream, operator.set("int8", 0), step=5)
    directive = made(operator.roll_back())
    assert (directive.kind, directive.plan.codec, directive.epoch) == ("rollback", "none", 1)
    again = operator.roll_back()
    assert (again.status_code, again.json()["is_new"]) == (200, False)
    assert msgspec.convert(again.json()["directive"], Directive) == directive
    stream.report(stream.switched(directive, step=9))
    assert directive_states(server.database_path, stream.run) == ["applied", "applied"]


def test_rollback_of_an_uncompressed_run_says_so_and_makes_nothing(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    answer = operator.roll_back()
    assert (answer.status_code, answer.json()["is_new"], answer.json()["directive"]) == (200, False, None)
    assert "Already uncompressed since step 0" in answer.json()["message"]
    assert kinds(server.database_path, stream.run) == ["attempt_started"]
    assert rows(server.database_path, "SELECT * FROM audit WHERE run = ?", stream.run) == []


def test_rollback_supersedes_a_change_that_is_on_its_way(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    made(operator.set("int8", 0))
    assert made(operator.roll_back()).revision == 2
    assert directive_states(server.database_path, stream.run) == ["superseded", "requested"]


def test_reason_may_follow_and_the_earlier_one_stays_in_the_audit(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    made(operator.set("int8", 0, reason="first"))
    assert operator.give_reason(1, "second").json()["reason"] == "second"
    audit = rows(server.database_path, "SELECT * FROM audit WHERE run = ? ORDER BY id", stream.run)
    assert [row["action"] for row in audit] == ["set", "reason"]
    assert '"first"' in audit[1]["before"]
    assert error(operator.give_reason(9, "x"))["code"] == "not_found"
    assert error(operator.give_reason(1, "x" * 3000))["code"] == "too_large"


def test_ended_run_takes_no_changes(server: ServerProcess, stream: AgentStream, operator: Operator) -> None:
    made(operator.set("int8", 0))
    stream.end(last_step=20)
    assert directive_states(server.database_path, stream.run) == ["expired"]
    for answer in (operator.set("int8", 1), operator.roll_back()):
        assert (answer.status_code, error(answer)["code"]) == (409, "closed")
        assert "ended (finished)" in str(error(answer)["message"])


def test_lost_run_takes_no_changes_until_it_is_heard_again(tmp_path: "object") -> None:
    with inside_server(tmp_path) as server:  # type: ignore[arg-type]
        stream = AgentStream(server.client(server.token("ingest")))
        stream.begin()
        operator = Operator(server.client(server.token("operator")), stream.run)
        server.advance(36)
        answer = operator.set("int8", 0)
        assert (answer.status_code, error(answer)["code"]) == (409, "closed")
        assert "gradwire rollback --local" in str(error(answer)["message"])
        stream.send(window(0))
        made(operator.set("int8", 0))


def test_run_that_is_only_measured_takes_no_changes(server: ServerProcess) -> None:
    stream = AgentStream(server.agent(), is_steered=False, notes=("the side group could not connect",))
    stream.begin()
    answer = Operator(server.operator(), stream.run).set("int8", 0)
    assert (answer.status_code, error(answer)["code"]) == (409, "closed")
    assert "the side group could not connect" in str(error(answer)["message"])


def test_unknown_run_or_model_is_not_found(server: ServerProcess, stream: AgentStream, operator: Operator) -> None:
    answer = Operator(server.operator(), new_id()).set("int8", 0)
    assert (answer.status_code, error(answer)["code"], error(answer)["field"]) == (404, "not_found", "run")
    answer = operator.set("int8", 0, model="critic")
    assert (answer.status_code, error(answer)["field"]) == (404, "model")
    assert "this run has model" in str(error(answer)["message"])


def test_models_of_a_run_are_changed_apart(server: ServerProcess, stream: AgentStream, operator: Operator) -> None:
    critic = AgentStream(server.agent(), run=stream.run, attempt=stream.attempt, model="critic")
    critic.begin()
    made(operator.set("int8", 0, model="critic"))
    assert stream.wait_directive(wait=0) is None
    fetched = critic.wait_directive(wait=0)
    assert fetched is not None
    critic.report(critic.switched(fetched, step=4))
    assert model_row(server.database_path, stream.run)["plan"]["codec"] == "none"
    assert model_row(server.database_path, stream.run, "critic")["plan"]["codec"] == "int8"


def test_only_operators_change_anything(server: ServerProcess, stream: AgentStream) -> None:
    for client, status in ((server.agent(), 403), (server.anonymous(), 401)):
        operator = Operator(client, stream.run)
        for answer in (operator.set("int8", 0), operator.roll_back(), operator.give_reason(1, "x")):
            assert answer.status_code == status, answer.text
    assert server.operator().get(routes.AGENT_DIRECTIVE.format(run=stream.run)).status_code in (403, 422)
    assert directive_states(server.database_path, stream.run) == []


def test_c51_of_two_who_press_at_once_one_wins_and_the_other_is_told(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    """Field case: two engineers on stale pages, fifty times at the same instant."""
    pair = (Operator(server.operator(), stream.run), Operator(server.operator(), stream.run))
    for revision in range(50):
        gate = threading.Barrier(2)
        answers: list[httpx.Response] = []

        def press(side: Operator, codec: str, revision: int = revision, gate: threading.Barrier = gate) -> None:
            gate.wait(20)
            answers.append(side.set(codec, revision))  # noqa: B023

        threads = [threading.Thread(target=press, args=sides) for sides in zip(pair, ("bf16", "int8"), strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert sorted(answer.status_code for answer in answers) == [202, 409]
        winner, loser = sorted(answers, key=lambda answer: answer.status_code)
        assert made(winner).revision == revision + 1
        assert msgspec.convert(error(loser)["current"], Directive) == made(winner)
    events = history(server.database_path, stream.run)
    asked = [event["data"]["revision"] for event in events if event["kind"] == "requested"]
    assert asked == list(range(1, 51))
    newest = stream.wait_directive(wait=0)
    assert newest is not None
    assert newest.revision == 50
    assert newest.plan.codec == model_codec(events)


def model_codec(events: list[dict[str, object]]) -> object:
    """Return the codec of the newest accepted change in the history."""
    return [event["data"]["codec"] for event in events if event["kind"] == "requested"][-1]  # type: ignore[index]


def test_rollback_against_a_change_at_once_ends_as_the_history_says(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    applied(stream, operator.set("int8", 0), step=1)
    other = Operator(server.operator(), stream.run)
    for _ in range(20):
        revision = model_row(server.database_path, stream.run)["revision"]
        gate = threading.Barrier(2)
        answers: list[httpx.Response] = []

        def press(action: str, revision: int = revision, gate: threading.Barrier = gate) -> None:
            gate.wait(20)
            answers.append(operator.set("bf16", revision) if action == "set" else other.roll_back())  # noqa: B023

        threads = [threading.Thread(target=press, args=(action,)) for action in ("set", "rollback")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert all(answer.status_code in (200, 202, 409) for answer in answers)
        newest = stream.wait_directive(wait=0)
        assert newest is not None
        assert newest.plan.codec == model_codec(history(server.database_path, stream.run))
        if any(answer.status_code == 409 for answer in answers):
            assert newest.kind == "rollback"


def test_process_left_over_from_an_older_attempt_gets_no_changes(
    server: ServerProcess, stream: AgentStream, operator: Operator
) -> None:
    time.sleep(0.002)  # Ids order attempts by the millisecond.
    again = AgentStream(server.agent(), run=stream.run)
    again.begin()
    directive = made(operator.set("int8", 1))
    assert stream.wait_directive(wait=0.1) is None
    assert again.wait_directive(wait=0) == directive
