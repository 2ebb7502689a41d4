"""Pauses inside pauses: a framework's own inside the script's."""

from gradwire.timing.clock import MonotonicClock
from gradwire.timing.phases import Phases


def test_the_outermost_pause_ends_last():
    phases = Phases(MonotonicClock())
    phases.pause()
    phases.pause()
    phases.begin("forward")
    phases.resume()
    assert phases.is_paused
    phases.resume()
    phases.begin("optimizer")
    assert not phases.is_paused
    assert [phase for phase, _ in phases.marks] == ["data_wait", "pause", "other", "optimizer"]


def test_one_resume_too_many_changes_nothing():
    phases = Phases(MonotonicClock())
    phases.resume()
    phases.pause()
    assert phases.is_paused
