import pytest
from gradwire.steering.guard import NONFINITE_STEPS, Guard


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
