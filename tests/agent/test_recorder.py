"""Steps with known stamps become windows with known sums."""

import pytest
from gradwire.timing.clock import MonotonicClock
from gradwire.timing.recorder import Recorder
from gradwire.timing.sums import NOT_COMPARED, NOT_TRACED
from gradwire.timing.trace import BucketStamps, StepTrace, SyncTrace
from gradwire_protocol.records import StepWindow
from gradwire_server.verdict import reasons


def step(number: int, *, epoch: int = 0, codec: str = "none", settling: bool = False) -> StepTrace:
    """A step of 10 s: 1 data, 2 forward, 3 backward, 3 exposed (of 5 on the wire), 0.5 other, 0.5 optimizer."""
    t = number * 10.0
    marks = [("data_wait", t), ("forward", t + 1), ("backward", t + 3), ("tail", t + 6), ("optimizer", t + 9.5)]
    bucket = BucketStamps(0, t + 4, t + 9, ((t + 4, t + 4.5, "encode"),), logical_bytes=100, wire_bytes=50)
    return StepTrace(
        step=number,
        epoch=epoch,
        codec=codec,
        is_settling=settling,
        marks=marks,
        end=t + 10,
        started_at=1e9,
        agent_seconds=0.01,
        samples=8,
        tokens=64,
        syncs=[SyncTrace(number, end_of_backward=t + 6, buckets=[bucket])],
    )


def record(*messages: StepTrace | tuple[int, tuple[float, ...] | None, bool] | str) -> list[StepWindow]:
    windows: list[StepWindow] = []
    recorder = Recorder(clock=MonotonicClock(), rank=3, on_window=windows.append)
    for message in messages:
        if isinstance(message, StepTrace):
            recorder.add(message)
        elif isinstance(message, str):
            recorder.stop_comparing(message)
        else:
            recorder.split(message[0], message[1], closes_window=message[2])
    recorder.close(10)
    return windows


def test_phases_add_up_to_the_step():
    (window,) = record(step(1), step(2), (2, (4.5,), True))
    seconds = window.seconds
    assert window.first_step == 1
    assert window.last_step == 2
    assert window.num_steps == window.num_rank_steps == 2
    assert seconds.step == pytest.approx(20)
    parts = (
        seconds.data_wait,
        seconds.forward,
        seconds.backward,
        seconds.exposed_communication,
        seconds.exposed_codec,
        seconds.optimizer,
        seconds.pause,
        seconds.other,
    )
    assert parts == pytest.approx((2, 4, 6, 6, 0, 1, 0, 1))
    assert sum(parts) == pytest.approx(seconds.step)
    assert seconds.overlapped == pytest.approx(3)
    assert seconds.encode == pytest.approx(1)
    assert (window.samples, window.tokens, window.logical_bytes, window.wire_bytes) == (16, 128, 200, 100)
    assert window.ranks[0].rank == 3


def test_compared_steps_stand_for_the_window():
    # Own communication is 4.5 s; the fastest rank needed 1.5, so 3 were waiting, the first of them overlapped.
    (window,) = record(step(1), step(2), (2, (1.5,), True))
    assert window.seconds.exposed_transfer == pytest.approx(3.0)
    assert window.seconds.straggler_wait == pytest.approx(3.0)
    assert window.unknown_reason == ""


def test_no_comparison_is_unknown_with_a_reason():
    (window,) = record(step(1), (1, None, True))
    assert window.seconds.exposed_transfer is None
    assert window.seconds.straggler_wait is None
    assert window.seconds.exposed_communication == pytest.approx(3.0)
    assert window.unknown_reason == NOT_COMPARED


def untraced(number: int, *, pause: float = 0.0) -> StepTrace:
    """A step of 10 s of which only the length and a pause are known."""
    trace, t = step(number), number * 10.0
    trace.marks = [("untraced", t), ("pause", t + 5), ("untraced", t + 5 + pause)]
    trace.syncs = [SyncTrace(number, is_traced=False)]
    trace.is_traced = False
    return trace


def test_traced_steps_stand_for_those_that_are_not():
    (window,) = record(untraced(1), untraced(2, pause=4), step(3), (3, (1.5,), True))
    # Twice 6 s and once 10 s of work beside the traced 10 s.
    assert window.num_steps == 3
    assert window.seconds.step == pytest.approx(30)
    assert window.seconds.pause == pytest.approx(4)
    assert window.seconds.forward == pytest.approx(2 * 26 / 10)
    assert window.seconds.exposed_communication == pytest.approx(3 * 26 / 10)
    assert window.seconds.exposed_transfer == pytest.approx(1.5 * 26 / 10)
    assert (window.samples, window.logical_bytes, window.wire_bytes) == (24, 300, 150)
    parts = ("data_wait", "forward", "backward", "exposed_communication", "exposed_codec", "optimizer", "pause")
    assert sum(getattr(window.seconds, part) for part in (*parts, "other")) == pytest.approx(30)


def test_a_window_without_a_traced_step_says_why_it_knows_nothing():
    (window,) = record(untraced(1), untraced(2))
    assert window.unknown_reason == NOT_TRACED
    assert window.seconds.exposed_transfer is None
    assert window.seconds.other == pytest.approx(20)
    assert window.num_steps == 2


def test_pages_translate_why_transfer_is_unknown():
    assert {NOT_COMPARED, NOT_TRACED} <= set(reasons.ALL)


@pytest.mark.parametrize("make", [step, untraced])
def test_without_a_pulse_the_reason_is_the_groups(make):
    windows = record("no side group", make(1), make(2))
    assert {window.unknown_reason for window in windows} == {"no side group"}
    assert sum(window.num_steps for window in windows) == 2


def test_a_switch_ends_a_window():
    windows = record(
        step(1), step(2, epoch=1, codec="int8", settling=True), step(3, epoch=1, codec="int8"), (3, None, False)
    )
    assert [(w.codec, w.is_settling, w.first_step, w.last_step) for w in windows] == [
        ("none", False, 1, 1),
        ("int8", True, 2, 2),
        ("int8", False, 3, 3),
    ]


def test_steps_after_the_compared_one_wait_for_the_next_pulse():
    windows = record(step(1), step(2), (1, (4.5,), True), step(3), (3, (4.5,), True))
    assert [(w.first_step, w.last_step) for w in windows] == [(1, 1), (2, 3)]


def test_every_step_is_counted_once_when_the_pulse_stays_away():
    windows = record(*[step(number) for number in range(1, 30)])
    assert sum(window.num_steps for window in windows) == 29


def test_a_pause_belongs_to_the_step_but_not_to_its_extremes():
    trace = step(1)
    trace.marks.append(("pause", 19.7))
    (window,) = record(trace, (1, (4.5,), True))
    assert window.seconds.pause == pytest.approx(0.3)
    assert window.step_seconds_max == pytest.approx(9.7)


def test_a_broken_step_costs_only_itself(caplog):
    broken = step(1)
    broken.marks = None  # type: ignore[assignment]
    windows = record(broken, step(2), (2, (4.5,), True))
    assert sum(window.num_steps for window in windows) == 1
    assert "training is not affected" in caplog.text
