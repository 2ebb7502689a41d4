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
