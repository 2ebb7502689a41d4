"""Of which exchange a pulse speaks, and what becomes of steps that no pulse compares."""

from gradwire.steering.tracing import Tracing
from gradwire.timing.clock import MonotonicClock
from gradwire.timing.cost import OwnCost
from gradwire.timing.recorder import Recorder
from gradwire.timing.trace import SyncTrace


def _tracing():
    recorder = Recorder(clock=MonotonicClock(), rank=0, on_window=lambda _window: None)
    return Tracing(recorder, OwnCost()), recorder


def test_ranks_that_spoke_of_different_exchanges_still_end_their_windows():
    tracing, recorder = _tracing()
    tracing.end(SyncTrace(3))
    assert tracing.compared() == (0, ())
    # Nobody has spoken of an exchange yet: the one that was asked for may still be compared.
    assert tracing.over(0, 4) == 0
    tracing.end(SyncTrace(6))
    assert tracing.compared()[0] == 3
    assert tracing.over(3, 8) == 3
    assert tracing.over(0, 8) == 8
    recorder.close(5.0)


def test_one_step_in_many_is_traced_and_those_that_settle_with_the_first_after_them():
    tracing, recorder = _tracing()
    tracing.agree(8, 1)
    settling = {1, 2, 21, 22, 41, 42, 43}
    traced = [step for step in range(1, 50) if tracing.is_due(step, is_settling=step in settling, is_steered=True)]
    assert traced == [1, 2, 3, 8, 16, 21, 22, 23, 24, 32, 40, 41, 42, 43, 44, 48]
    recorder.close(5.0)


def test_ranks_that_nobody_compares_go_by_their_own_stride():
    tracing, recorder = _tracing()
    tracing.agree(8, 1)
    assert tracing.is_due(5, is_settling=False, is_steered=False)
    assert not tracing.is_due(5, is_settling=False, is_steered=True)
    recorder.close(5.0)


def test_the_history_is_told_how_rare_traces_became_and_not_of_every_turn():
    tracing, recorder = _tracing()
    events = [tracing.agree(stride, 9) for stride in (1, 2, 1, 2, 4, 2, 4)]
    told = [event and event.data["stride"] for event in events]
    assert told == [None, 2, None, None, 4, None, None]
    recorder.close(5.0)


def test_the_usual_stride_of_short_steps_is_no_news():
    cost = OwnCost()
    cost.judge(0.0, 1.0, 50)
    recorder = Recorder(clock=MonotonicClock(), rank=0, on_window=lambda _window: None)
    tracing = Tracing(recorder, cost)
    assert tracing.agree(8, 60) is None
    assert tracing.agree(16, 120) is not None
    recorder.close(5.0)
