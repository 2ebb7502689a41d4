import pytest
from gradwire.steering.cadence import Cadence


def run(cadence: Cadence, step_seconds: float, num_syncs: int) -> list[int]:
    """Return the exchanges that carried a pulse when the agreed interval is always the wanted one."""
    pulses, in_flight = [], None
    for sync in range(1, num_syncs + 1):
        cadence.tick(100 + sync * step_seconds)
        if in_flight is not None:
            cadence.agree(in_flight, cadence.wanted_interval())
            in_flight = None
        if cadence.is_due(sync):
            pulses.append(sync)
            in_flight = sync
    return pulses


def test_long_steps_carry_a_pulse_each():
    assert run(Cadence(), 0.6, 6) == [1, 2, 3, 4, 5, 6]


def test_short_steps_carry_a_pulse_twice_a_second():
    pulses = run(Cadence(), 0.02, 200)
    assert pulses[-1] - pulses[-2] in (25, 26)


def test_one_long_pause_does_not_change_the_interval_much():
    cadence = Cadence()
    for tick in range(100):
        cadence.tick(1 + tick * 0.1)
    cadence.tick(5000.0)
    assert cadence.wanted_interval() in (4, 5)


def test_windows_close_once_a_second():
    cadence = Cadence()
    cadence.tick(50.0)
    assert [cadence.closes_window(50 + tenth / 10) for tenth in range(1, 23)].count(True) == 2


def test_pulses_become_rarer_with_economy_up_to_a_second():
    cadence = Cadence()
    for index in range(10):
        cadence.tick(0.02 * index)
    intervals = [cadence.wanted_interval(economy) for economy in (1, 2, 4, 8, 64)]
    assert intervals == pytest.approx([25, 50, 50, 50, 50], abs=1)
