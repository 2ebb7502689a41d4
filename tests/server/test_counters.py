import pytest
from agent_stream import attempt_started, plan
from gradwire_protocol.identity import new_id
from gradwire_protocol.limits import LOST_AFTER_SECONDS
from gradwire_protocol.messages import Batch
from gradwire_protocol.records import AttemptEnded, Record, Switched
from gradwire_server.metrics.counters import FORGET_SECONDS, MAX_RUNS, Counters, RunCounters
from sqlalchemy import Connection
from stored_run import StoredRun, steps


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def batch(run: str, *records: Record, attempt: str = "", node: int = 0, is_late: bool = False) -> Batch:
    key = {"run": run, "attempt": attempt or run, "model": "model"}
    return Batch(**key, node=node, number=1, records=records, is_late=is_late)


def switched(cause: str = "directive", *, is_rollback: bool = False, num_ranks: int = 2) -> Switched:
    return Switched(
        at=0.0,
        step=10,
        epoch=1,
        plan=plan("none" if is_rollback else "int8"),
        num_ranks=num_ranks,
        cause=cause,  # type: ignore[arg-type]
        is_rollback=is_rollback,
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters(clock: Clock) -> Counters:
    return Counters(clock)


def only(counters: Counters) -> RunCounters:
    (found,) = counters.snapshot()[0].values()
    return found


def test_windows_add_up(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, attempt_started(), steps(0, wait=0.005, pause=0.010, codec_seconds=0.004)))
    counters.add(batch(run, steps(10)))
    sums = only(counters).sums
    assert sums["step", ""] == pytest.approx(20 * 0.110 + 20 * 0.100)
    assert sums["pause", ""] == pytest.approx(20 * 0.010)
    assert sums["compute", "forward"] == pytest.approx(40 * 0.020)
    assert sums["comm", "exposed_transfer"] == pytest.approx(40 * 0.040)
    assert sums["comm", "straggler_wait"] == pytest.approx(20 * 0.005)
    assert sums["codec", "encode"] == pytest.approx(20 * 0.003)
    assert only(counters).counts == {
        "tokens": 40_000,
        "samples": 40 * 32,
        "wire_bytes": 160_000_000,
        "logical_bytes": 160_000_000,
        "rank_steps": 40,
        "steps": 20,
    }


def test_kinds_of_communication_add_up_to_all_of_it_when_the_split_is_unknown(counters: Counters) -> None:
    counters.add(batch(new_id(), steps(0, wait=0.005), steps(10, transfer=None), steps(20, overlapped=0.01)))
    sums = only(counters).sums
    comm = sum(value for (name, _), value in sums.items() if name == "comm")
    assert comm == pytest.approx(20 * (0.045 + 0.040 + 0.050))
    assert sums["comm", "exposed_unsplit"] == pytest.approx(20 * 0.040)
    # The denominator of shares leaves out the steps whose transfer is unknown.
    assert sums["split_training", ""] == pytest.approx(40 * 0.100)


def test_steps_are_counted_once_for_all_nodes(counters: Counters) -> None:
    run = new_id()
    for node in (0, 1, 2):
        counters.add(batch(run, steps(0), node=node))
    assert only(counters).counts["steps"] == 10
    assert only(counters).counts["rank_steps"] == 60


def test_bytes_beyond_two_to_the_53_lose_no_digit(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, steps(0, wire_bytes=2**53 + 1)))
    counters.add(batch(run, steps(0, wire_bytes=1)))
    assert only(counters).counts["wire_bytes"] == 2**53 + 2


def test_rollbacks_are_counted_by_cause(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, attempt_started(world_size=8)))
    assert only(counters).num_applied_ranks == 8
    counters.add(batch(run, switched(num_ranks=7), switched(is_rollback=True), switched("guard", is_rollback=True)))
    assert only(counters).rollbacks == {"directive": 1, "guard": 1}
    assert (only(counters).codec, only(counters).num_applied_ranks) == ("none", 2)


def test_link_is_nominal_from_facts_and_measured_from_the_newest_window(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, attempt_started(), steps(0, wait=0.010), steps(10, transfer=0.020, wait=0.010)))
    assert only(counters).nominal_bytes_per_second == 125e6
    assert only(counters).measured_bytes_per_second == pytest.approx(4e6 / 0.020)


def test_run_is_live_until_it_ends_or_is_not_heard_of(counters: Counters, clock: Clock) -> None:
    run = new_id()
    counters.add(batch(run, attempt_started(), steps(0)))
    counters.add(batch(run, attempt_started(), steps(0), node=1))
    assert only(counters).is_live(clock.now)
    ended = AttemptEnded(at=0.0, last_step=9, status="finished")
    counters.add(batch(run, ended))
    assert only(counters).is_live(clock.now)
    counters.add(batch(run, ended, node=1))
    assert only(counters).has_ended
    assert not only(counters).is_live(clock.now)
    # A restart lives again.
    counters.add(batch(run, attempt_started(), attempt=new_id()))
    assert only(counters).is_live(clock.now)
    clock.now += LOST_AFTER_SECONDS + 1
    assert not only(counters).is_live(clock.now)
    assert not only(counters).has_ended


def test_ended_and_lost_runs_are_forgotten_after_the_stated_time(counters: Counters, clock: Clock) -> None:
    counters.add(batch(new_id(), steps(0)))
    clock.now += FORGET_SECONDS - 1
    assert len(counters.snapshot()[0]) == 1
    clock.now += 2
    assert counters.snapshot()[0] == {}


def test_runs_beyond_the_cap_are_counted_and_ended_ones_make_room(counters: Counters, clock: Clock) -> None:
    first = new_id()
    counters.add(batch(first, attempt_started(), steps(0)))
    for _ in range(MAX_RUNS - 1):
        counters.add(batch(new_id(), steps(0)))
    late = new_id()
    counters.add(batch(late, steps(0)))
    found, num_overflowed = counters.snapshot()
    assert (len(found), num_overflowed, late in found) == (MAX_RUNS, 1, False)
    counters.add(batch(first, AttemptEnded(at=0.0, last_step=9, status="finished")))
    counters.add(batch(late, steps(10)))
    found, num_overflowed = counters.snapshot()
    assert (len(found), num_overflowed, late in found, first in found) == (MAX_RUNS, 1, True, False)


def test_thousands_of_ended_runs_leave_no_trace(counters: Counters, clock: Clock) -> None:
    live = [new_id() for _ in range(20)]
    for index in range(5000):
        run = new_id()
        counters.add(batch(run, attempt_started(), steps(0), AttemptEnded(at=0.0, last_step=9, status="finished")))
        clock.now += 0.5
        counters.add(batch(live[index % 20], steps(0)))
    found, num_overflowed = counters.snapshot()
    assert len(found) <= MAX_RUNS
    assert set(live) <= set(found)
    assert num_overflowed == 0


def test_facts_of_runs_under_way_are_loaded_at_start(counters: Counters, connection: Connection) -> None:
    under_way, over = StoredRun(connection, run_name="under way", project="llama"), StoredRun(connection)
    under_way.send(steps(0))
    over.send(AttemptEnded(at=0.0, last_step=9, status="finished"))
    counters.load(connection)
    # A finished run does not come back after a restart, and one under way is there once it is heard of.
    assert counters.snapshot()[0] == {}
    counters.add(batch(under_way.id, steps(10), attempt=under_way.attempt))
    found = only(counters)
    assert (found.project, found.name, found.nominal_bytes_per_second) == ("llama", "under way", 125e6)
    assert found.is_live(found.heard_at)


def test_snapshot_is_a_copy(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, steps(0)))
    before = only(counters)
    counters.add(batch(run, steps(10)))
    assert before.counts["rank_steps"] == 20


def test_spool_of_a_dead_attempt_leaves_the_live_one_alone(counters: Counters, clock: Clock) -> None:
    run, live = new_id(), new_id()
    counters.add(batch(run, attempt_started(), steps(0), attempt=live))
    before, clock.now = only(counters), clock.now + 10
    counters.add(batch(run, attempt_started(), steps(0), attempt=new_id(), is_late=True))
    counters.add(batch(new_id(), attempt_started(), steps(0), is_late=True))
    assert only(counters) == before
    clock.now += LOST_AFTER_SECONDS - 9
    assert not only(counters).is_live(clock.now)


def test_late_last_word_ends_the_stream(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, attempt_started(), steps(0)))
    ended = AttemptEnded(at=0.0, last_step=9, status="failed")
    counters.add(batch(run, ended, attempt=new_id(), is_late=True))
    assert not only(counters).has_ended
    counters.add(batch(run, ended, is_late=True))
    assert only(counters).has_ended


def test_check_window_is_no_change_of_codec(counters: Counters) -> None:
    run = new_id()
    counters.add(batch(run, steps(0, codec="int8"), steps(10, is_check=True)))
    assert only(counters).codec == "int8"
