import random

import msgspec
import pytest
from agent_stream import plan
from gradwire_protocol.limits import LOST_AFTER_SECONDS, SILENT_AFTER_SECONDS
from gradwire_protocol.records import AttemptEnded, Event, NodeFacts
from gradwire_server.database.tables import directives
from gradwire_server.runs.reading import run_summaries, run_view
from gradwire_server.runs.views import Measure
from gradwire_server.verdict import reasons
from sqlalchemy import Connection, insert
from stored_run import BEGIN, StoredRun, metric, steps, view

HOUR = 3600.0


def train(run: StoredRun, first: int, count: int, *, spread: float = 0.002, **changes: object) -> None:
    """Store `count` windows of ten steps whose step time scatters by `spread` seconds."""
    source = random.Random(first)
    base = float(changes.pop("step", 0.100))  # type: ignore[arg-type]
    for index in range(count):
        step = base + source.uniform(-spread, spread)
        run.send(steps(first + 10 * index, step=step, **changes))  # type: ignore[arg-type]


def compressed(run: StoredRun, **changes: object) -> None:
    """Store 200 uncompressed steps of 100 ms, a switch, and 200 steps with int8 of 70 ms."""
    train(run, 0, 20)
    run.switch(200, 1, "int8")
    run.send(steps(200, 4, step=0.300, codec="int8", epoch=1, is_settling=True))
    train(run, 204, 20, step=0.070, transfer=0.010, codec_seconds=0.005, codec="int8", epoch=1, **changes)


def test_uncompressed_run_is_judged_worth_it(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=1000)
    train(run, 0, 20)
    shown = view(connection, run)
    verdict = shown.summary.verdict
    assert verdict.kind == "worth_it"
    assert verdict.share.value == pytest.approx(0.40, abs=0.01)
    assert (verdict.first_step, verdict.last_step) == (0, 199)
    assert (shown.summary.step, shown.summary.total_steps, shown.summary.codec) == (199, 1000, "none")
    assert shown.exposed_share.value == pytest.approx(0.40, abs=0.01)
    assert shown.bandwidth_use.value == pytest.approx(4e6 / 0.040 / 125e6, rel=0.01)
    assert shown.throughput.value == pytest.approx(2 * 1000 / 0.100, rel=0.01)
    assert shown.saving.saved_hours.value == 0.0
    speed = verdict.expected_speedup
    assert speed is not None
    assert shown.saving.could_save_hours.value == pytest.approx(801 * 2 * 0.1 * (1 - 1 / speed) / HOUR, rel=0.02)
    assert shown.finish_at.value == pytest.approx(run.now + 801 * 0.100, abs=1.0)


def test_success_is_not_taken_for_no_need(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=1000)
    compressed(run)
    shown = view(connection, run)
    verdict = shown.summary.verdict
    assert (verdict.kind, verdict.codec, verdict.num_uncompressed_steps) == ("paying_off", "int8", 200)
    assert verdict.speedup.value == pytest.approx(1 / 0.7, rel=0.02)
    # Uncompressed it was 40 %; the 14 % of now are shown beside and judge nothing.
    assert verdict.share.value == pytest.approx(0.40, abs=0.01)
    assert shown.exposed_share.value == pytest.approx(0.010 / 0.070, rel=0.02)
    assert (shown.plan.codec, shown.codec_since_step, shown.epoch) == ("int8", 200, 1)


def test_codec_is_judged_by_its_present_parameters(connection: Connection) -> None:
    run = StoredRun(connection)
    compressed(run)
    run.switch(404, 2, "int8")
    train(run, 404, 3, step=0.090, transfer=0.010, codec="int8", epoch=2)
    verdict = view(connection, run).summary.verdict
    assert (verdict.kind, verdict.reason, verdict.first_step) == ("cannot_say_pays", reasons.TOO_FEW_STEPS, 404)
    train(run, 434, 20, step=0.090, transfer=0.010, codec="int8", epoch=2)
    assert view(connection, run).summary.verdict.speedup.value == pytest.approx(1 / 0.9, rel=0.02)


def test_saving_counts_all_compressed_steps_of_the_attempt(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=1000)
    compressed(run)
    saving = view(connection, run).saving
    spent = 4 * 2 * 0.300 + 200 * 2 * 0.070
    assert saving.saved_hours.value == pytest.approx((204 * 2 * 0.100 - spent) / HOUR, rel=0.05)
    assert saving.will_save_hours.value == pytest.approx((999 + 1 - 403) * 2 * 0.030 / HOUR, rel=0.05)
    assert saving.could_save_hours.reason == reasons.IS_COMPRESSED


def test_saving_stays_after_a_rollback(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=1000)
    compressed(run)
    before = view(connection, run).saving.saved_hours.value
    run.switch(404, 2, "none", is_rollback=True)
    train(run, 404, 20, epoch=2)
    shown = view(connection, run)
    assert shown.saving.saved_hours.value == pytest.approx(before, rel=0.05)
    assert shown.saving.will_save_hours.reason == reasons.IS_UNCOMPRESSED
    assert shown.summary.verdict.kind == "worth_it"
    # The codec's cost is known now: 5 ms of a 100 ms step.
    costs = {choice.name: choice.codec_cost for choice in shown.codecs}
    assert costs["int8"].value == pytest.approx(0.05, rel=0.02)
    assert costs["int8"].reason == ""
    assert costs["bf16"].reason == reasons.ASSUMED
    assert shown.last_change is not None
    assert (shown.last_change.kind, shown.last_change.cause, shown.last_change.step) == ("rollback", "local", 404)


def test_verdict_just_after_a_switch_waits_for_settled_steps(connection: Connection) -> None:
    run = StoredRun(connection)
    train(run, 0, 20)
    run.switch(200, 1, "int8")
    shown = view(connection, run)
    assert shown.summary.verdict.kind == "cannot_say_pays"
    assert all(stage.seconds is None for stage in shown.loop)
    run.send(steps(200, 2, step=0.300, codec="int8", epoch=1, is_settling=True))
    assert view(connection, run).summary.verdict.kind == "cannot_say_pays"


def test_warm_up_steps_are_judged_as_the_uncompressed_steps_they_are(connection: Connection) -> None:
    run = StoredRun(connection, plan=plan("int8"))
    train(run, 0, 20)
    assert view(connection, run).summary.verdict.kind == "worth_it"


def test_nodes_add_up_and_their_number_is_known(connection: Connection) -> None:
    run = StoredRun(connection, world_size=4)
    for first in range(0, 200, 10):
        run.send(steps(first))
        run.facts = msgspec.structs.replace(run.facts, node=NodeFacts(host="node-01", ranks=(2, 3)))
        run.send(steps(first), node=1)
    shown = view(connection, run)
    assert (shown.trust.num_nodes, shown.trust.num_nodes_reporting) == (2, 2)
    assert shown.summary.verdict.num_steps == 200
    assert shown.throughput.value == pytest.approx(4 * 1000 / 0.100)
    assert shown.step_seconds.value == pytest.approx(0.100)


def test_loop_is_of_the_newest_minute_not_of_the_whole_run(connection: Connection) -> None:
    run = StoredRun(connection)
    train(run, 0, 200, step=0.100)
    train(run, 2000, 100, step=0.200)
    # Sixty seconds at the run's mean step are some 450 steps, all of them slow ones.
    assert view(connection, run).step_seconds.value == pytest.approx(0.200, rel=0.01)


def test_restart_begins_a_new_judgement(connection: Connection) -> None:
    run = StoredRun(connection)
    compressed(run)
    run.restart()
    run.send(steps(300), steps(310))
    shown = view(connection, run)
    assert (shown.attempt_number, shown.summary.codec) == (2, "none")
    assert (shown.summary.verdict.kind, shown.summary.verdict.num_steps) == ("cannot_say", 20)
    assert shown.summary.verdict.more_steps == 60


@pytest.mark.parametrize(
    ("after", "name"),
    [(SILENT_AFTER_SECONDS - 1, "running"), (SILENT_AFTER_SECONDS + 1, "silent"), (LOST_AFTER_SECONDS + 1, "lost")],
)
def test_status_comes_from_the_newest_receipt(connection: Connection, after: float, name: str) -> None:
    run = StoredRun(connection)
    run.send(steps(0))
    status = view(connection, run, after).summary.status
    assert status.name == name
    assert status.since == (run.now if name != "running" else BEGIN + 1)


def test_lost_run_has_no_finish_date(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=1000)
    train(run, 0, 5)
    assert view(connection, run).finish_at.value is not None
    assert view(connection, run, 3600).finish_at == Measure(reason=reasons.IS_LOST)


def test_downtime_of_the_server_is_nobodys_silence(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0))
    back = run.now + 600
    assert view(connection, run, 601, server_started_at=back).summary.status.name == "running"
    assert view(connection, run, 601, server_started_at=back).trust.num_nodes_reporting == 1
    assert view(connection, run, 620, server_started_at=back).summary.status.name == "silent"
    assert view(connection, run, 640, server_started_at=back).summary.status.name == "lost"


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted"])
def test_last_word_of_the_training_is_final(connection: Connection, status: str) -> None:
    run = StoredRun(connection, total_steps=100)
    run.send(steps(0), AttemptEnded(at=0.0, last_step=9, status=status, exception="ValueError"))  # type: ignore[arg-type]
    shown = view(connection, run, 10_000)
    assert (shown.summary.status.name, shown.summary.status.detail) == (status, "ValueError")
    assert shown.finish_at.reason == shown.saving.could_save_hours.reason == reasons.IS_OVER


def test_change_shows_author_state_and_seconds(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0))
    row = {
        "run": run.id,
        "model": "model",
        "attempt": run.attempt,
        "kind": "set",
        "plan": {"codec": "int8"},
        "epoch": 0,
        "author": "ann",
        "requested_at": BEGIN + 10,
    }
    refused = [{"rank": 1, "host": "node-00", "reason": "out of memory"}]
    applied = {"revision": 1, "state": "applied", "answered_at": BEGIN + 10.9, "applied_step": 41_207}
    connection.execute(insert(directives).values(**row, **applied, num_ranks_confirmed=2))
    connection.execute(
        insert(directives).values(
            **{**row, "requested_at": BEGIN + 20}, revision=2, state="rejected", refusals=refused
        )
    )
    shown = view(connection, run)
    assert [change.revision for change in shown.changes] == [2, 1]
    assert shown.last_change == shown.changes[0]
    assert shown.last_change.refusals[0].reason == "out of memory"
    first = shown.changes[1]
    assert (first.author, first.codec, first.state, first.step) == ("ann", "int8", "applied", 41_207)
    assert first.seconds == pytest.approx(0.9)
    assert (first.num_ranks_confirmed, first.num_ranks) == (2, 2)


def test_codecs_carry_refusals_memory_and_what_they_should_bring(connection: Connection) -> None:
    run = StoredRun(connection)
    train(run, 0, 20)
    choices = {choice.name: choice for choice in view(connection, run).codecs}
    assert list(choices) == ["none", "bf16", "int8", "onebit", "topk"]
    assert choices["int8"].extra_memory_bytes == 8_000_000
    assert choices["int8"].parameters[0]["name"] == "block"
    assert choices["onebit"].safe_alternative == "int8"
    assert "AdamW" in choices["onebit"].refusal
    assert choices["int8"].expected_speedup is not None
    assert choices["bf16"].expected_speedup is not None
    assert 1 < choices["bf16"].expected_speedup < choices["int8"].expected_speedup
    assert choices["none"].expected_speedup is None


def test_gradients_of_two_bytes_gain_nothing_from_bf16(connection: Connection) -> None:
    run = StoredRun(connection, gradient_bytes=2_000_000)
    train(run, 0, 20)
    choices = {choice.name: choice.expected_speedup for choice in view(connection, run).codecs}
    assert choices["bf16"] is not None
    assert choices["bf16"] < 1
    run = StoredRun(connection, gradient_bytes=2_000_000, codecs=("none", "bf16"))
    train(run, 0, 20)
    verdict = view(connection, run).summary.verdict
    assert (verdict.kind, verdict.suggested_codec, verdict.expected_speedup) == ("worth_it", "", None)


def test_single_rank_has_nothing_to_gain(connection: Connection) -> None:
    run = StoredRun(connection, world_size=1)
    train(run, 0, 20, ranks=1, transfer=0.0)
    verdict = view(connection, run).summary.verdict
    assert (verdict.kind, verdict.reason) == ("not_worth_it", reasons.ONE_RANK)


def test_unknown_transfer_shows_the_agents_reason(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(*(steps(first, transfer=None, unknown_reason="not steered") for first in range(0, 200, 10)))
    shown = view(connection, run)
    assert (shown.summary.verdict.kind, shown.exposed_share.reason) == ("not_measured", "not steered")
    # What needs no split is there all the same.
    assert shown.raw_share.value == pytest.approx(0.40)
    assert shown.summary.sparkline[0] is None


def test_run_that_has_just_begun_is_shown(connection: Connection) -> None:
    run = StoredRun(connection, notes=("the C kernels are missing",))
    run.send()
    shown = view(connection, run)
    assert shown.summary.verdict.kind == "cannot_say"
    assert shown.trust.age_seconds is None
    assert shown.trust.notes == ("the C kernels are missing",)
    assert shown.finish_at.reason == reasons.NO_TOTAL


def test_non_finite_points_are_counted(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(metric(0, [1.0, None, None, None]))
    shown = view(connection, run)
    assert shown.num_nonfinite == 3
    assert shown.quality.state == "breach"


def test_copies_that_differ_are_named_until_they_agree_or_the_training_restarts(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(_copies("replicas_differ", "old.weight"))
    run.send(_copies("replicas_differ", "body.weight"))
    run.send(Event(at=0.0, step=8, kind="note", message="something else"))
    assert view(connection, run).trust.differing_parameter == "body.weight"
    run.send(_copies("replicas_agree", ""))
    assert view(connection, run).trust.differing_parameter == ""
    run.send(_copies("replicas_differ", "head.weight"))
    assert view(connection, run).trust.differing_parameter == "head.weight"
    run.restart()
    run.send()
    assert view(connection, run).trust.differing_parameter == ""


def _copies(kind: str, parameter: str) -> Event:
    return Event(at=0.0, step=8, kind=kind, message="", level="error", data={"parameter": parameter})


def test_history_is_newest_first(connection: Connection) -> None:
    run = StoredRun(connection)
    for step in range(30):
        run.send(Event(at=0.0, step=step, kind="note", message=f"note {step}", data={"step": step}))
    events = view(connection, run).events
    assert [line.step for line in events] == list(range(29, 9, -1))
    assert events[0].data == {"step": 29}


def test_models_of_a_run_are_apart(connection: Connection) -> None:
    run = StoredRun(connection)
    run.send(steps(0, step=0.100), model="generator")
    run.send(steps(0, step=0.200), model="discriminator")
    assert view(connection, run).model == "discriminator"
    assert view(connection, run, model="generator").step_seconds.value == pytest.approx(0.100)
    assert run_view(connection, run.id, run.now, model="other") is None
    assert run_view(connection, "00000000-0000-7000-8000-000000000000", run.now) is None


def test_summaries_are_newest_first_and_paged(connection: Connection) -> None:
    made = [StoredRun(connection, now=BEGIN + 100 * index, run_name="baseline") for index in range(5)]
    for run in made:
        train(run, 0, 20)
    now = made[-1].now
    shown = run_summaries(connection, now, 3)
    assert [summary.id for summary in shown] == [run.id for run in reversed(made[2:])]
    rest = run_summaries(connection, now, 3, before=shown[-1].id)
    assert [summary.id for summary in rest] == [run.id for run in reversed(made[:2])]
    assert run_summaries(connection, now, 3, before="unknown") == []
    assert {name for summary in shown for name in (summary.name,)} == {"baseline"}
    assert 1 <= len(shown[0].sparkline) <= 24
    assert shown[0].sparkline[0] == pytest.approx(0.40, abs=0.01)
    choices = view(connection, made[0]).baseline_choices
    assert {choice for choice, _ in choices} == {run.id for run in made[1:]}


def instructions(connection: Connection, run: StoredRun) -> int:
    """Return what a view costs, in hundreds of the database's own instructions."""
    count = 0

    def note() -> int:
        nonlocal count
        count += 1
        return 0

    raw = connection.connection.dbapi_connection
    assert raw is not None
    raw.set_progress_handler(note, 100)
    view(connection, run)
    raw.set_progress_handler(None, 100)
    return count


def test_view_of_a_long_run_costs_no_more_than_of_a_short_one(connection: Connection) -> None:
    run = StoredRun(connection, total_steps=10**6)

    def train_to(first: int, stop: int) -> None:
        for start in range(first, stop, 1000):
            windows = [steps(step) for step in range(start, start + 1000, 10)]
            run.send(*windows, metric(start, [1.0] * 1000))

    train_to(0, 30_000)
    short = instructions(connection, run)
    train_to(30_000, 150_000)
    assert instructions(connection, run) < 1.2 * short
