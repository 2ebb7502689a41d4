import random

import pytest
from gradwire.steering.guard import Guard
from gradwire.steering.rules import MATCH_MIN_SAMPLES, MATCH_SAMPLES, NONFINITE_STEPS, SPIKE_MIN_LOSSES, SPIKE_STEPS


def test_guard_asks_once_after_three_bad_losses():
    said: list[str] = []
    guard = Guard(is_armed=lambda: True, on_breach=said.append)
    for step in range(1, 8):
        guard.observe_loss(step, float("nan"))
    assert said == [f"the loss was not finite for {NONFINITE_STEPS} steps in a row, up to step 3"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_guard_lets_single_overflows_pass(bad):
    said: list[str] = []
    guard = Guard(is_armed=lambda: True, on_breach=said.append)
    for step in range(30):
        guard.observe_loss(step, bad if step % NONFINITE_STEPS else 1.0)
    assert said == []


def test_guard_counts_gradients_apart_from_losses():
    said: list[str] = []
    guard = Guard(is_armed=lambda: True, on_breach=said.append)
    for step in range(NONFINITE_STEPS):
        guard.observe_gradient(step, is_finite=False)
        guard.observe_loss(step, 1.0)
    assert len(said) == 1
    assert "averaged gradient" in said[0]


def test_guard_is_silent_while_uncompressed_and_counts_anew_after_a_switch():
    said: list[str] = []
    armed = [False]
    guard = Guard(is_armed=lambda: armed[0], on_breach=said.append)
    for step in range(10):
        guard.observe_loss(step, float("nan"))
    armed[0] = True
    guard.reset()
    guard.observe_loss(11, float("nan"))
    guard.observe_loss(12, float("nan"))
    assert said == []
    guard.observe_loss(13, float("nan"))
    assert len(said) == 1


def guarded(**arguments):
    """Return a guard and what it said."""
    said: list[str] = []
    return Guard(is_armed=lambda: True, on_breach=said.append, **arguments), said


def falling_losses(num_steps: int, *, scatter: float) -> list[float]:
    chance = random.Random(3)
    return [3.0 * 0.999**step + chance.gauss(0, scatter) for step in range(num_steps)]


def test_losses_that_jump_and_stay_there_are_a_spike():
    guard, said = guarded()
    for step, loss in enumerate(falling_losses(200, scatter=0.05)):
        guard.observe_loss(step, loss)
    for step in range(200, 200 + SPIKE_STEPS):
        assert said == []
        guard.observe_loss(step, 6.0)
    assert len(said) == 1
    assert "the loss was above" in said[0]
    assert f"up to step {200 + SPIKE_STEPS - 1}" in said[0]


@pytest.mark.parametrize("scatter", [0.0, 0.05, 0.5])
def test_healthy_training_with_single_bad_batches_is_no_spike(scatter):
    guard, said = guarded()
    for step, loss in enumerate(falling_losses(5000, scatter=scatter)):
        guard.observe_loss(step, 100.0 if step % 50 == 49 else loss)
    assert said == []


def test_a_rise_within_the_scatter_of_the_losses_is_no_spike():
    guard, said = guarded()
    for step, loss in enumerate(falling_losses(500, scatter=0.5)):
        guard.observe_loss(step, loss + (1.0 if step > 400 else 0.0))
    assert said == []


def test_losses_from_before_the_switch_are_the_measure_after_it():
    armed = [False]
    said: list[str] = []
    guard = Guard(is_armed=lambda: armed[0], on_breach=said.append)
    for step, loss in enumerate(falling_losses(100, scatter=0.05)):
        guard.observe_loss(step, loss)
    armed[0] = True
    guard.reset()
    for step in range(100, 100 + SPIKE_STEPS):
        guard.observe_loss(step, 9.0)
    assert len(said) == 1


def test_few_losses_have_no_scale():
    guard, said = guarded()
    for step in range(SPIKE_MIN_LOSSES - SPIKE_STEPS - 1):
        guard.observe_loss(step, 1.0)
    for step in range(100, 100 + SPIKE_STEPS):
        guard.observe_loss(step, 1e6)
    assert said == []


def test_match_below_half_of_its_median_is_a_breach_once():
    guard, said = guarded()
    for step in range(20):
        guard.observe_match(step, 0.9)
    for step in range(20, 19 + MATCH_SAMPLES):
        guard.observe_match(step, 0.44)
    assert said == []
    for step in range(30, 40):
        guard.observe_match(step, 0.44)
    assert len(said) == 1
    assert "half of its median since the switch, 0.9" in said[0]


@pytest.mark.parametrize("usual", [-0.1, 0.0])
def test_match_around_a_median_that_is_not_positive_is_no_drop(usual):
    guard, said = guarded()
    for step in range(100):
        guard.observe_match(step, usual - 0.01 * (step % 7 > 2))
    assert said == []


def test_match_is_measured_by_itself_since_the_switch():
    guard, said = guarded()
    for step in range(20):
        guard.observe_match(step, 0.99)
    guard.reset()
    # Another codec, which is coarser and just as healthy.
    for step in range(20, 30 + MATCH_MIN_SAMPLES):
        guard.observe_match(step, 0.3)
    assert said == []


def test_ignored_steps_neither_count_nor_reset():
    guard, said = guarded(ignores=lambda step: step == 2)
    for step, loss in enumerate([float("nan"), float("nan"), 1.0, float("nan")]):
        guard.observe_loss(step, loss)
    assert len(said) == 1
