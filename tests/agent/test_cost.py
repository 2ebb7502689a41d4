"""What the agent spends, and how it lowers its own sampling."""

import threading
import time

import pytest
from gradwire.timing.cost import OwnCost, thread_seconds


def burn(seconds: float) -> None:
    """Spend CPU time of this thread."""
    while time.thread_time() < seconds:
        pass


@pytest.fixture
def busy_thread():
    """A thread that has burnt 50 ms, and waits."""
    threads: list[tuple[threading.Thread, threading.Event]] = []

    def start(name: str) -> None:
        has_burnt, may_end = threading.Event(), threading.Event()

        def work() -> None:
            burn(0.05)
            has_burnt.set()
            may_end.wait()

        thread = threading.Thread(target=work, name=name)
        thread.start()
        threads.append((thread, may_end))
        assert has_burnt.wait(30)

    yield start
    for thread, may_end in threads:
        may_end.set()
        thread.join()


def test_the_agents_threads_are_counted_once(busy_thread):
    cost = OwnCost()
    busy_thread("gradwire-test")
    assert 0.05 <= cost.take_thread_seconds() < 5
    assert cost.take_thread_seconds() < 0.05


@pytest.mark.parametrize("name", ["gradwire-lane", "loader"])
def test_gradients_and_other_peoples_threads_are_not_the_agents_cost(busy_thread, name):
    before = thread_seconds()
    busy_thread(name)
    assert set(thread_seconds()) == set(before)


def test_the_stride_doubles_above_the_budget_and_halves_well_below():
    cost, strides = OwnCost(budget=0.01), []
    for share in (0.01, 0.0055, 0.004, 0.0025, 0.0015, 0.0005, 0.0005):
        cost.judge(share, 1.0, 10)
        strides.append(cost.stride)
    assert strides == [2, 4, 4, 4, 2, 1, 1]


@pytest.mark.parametrize(("num_steps", "longest"), [(1, 1), (4, 2), (50, 25), (1000, 64)])
def test_long_steps_are_traced_often_enough(num_steps, longest):
    cost = OwnCost(budget=0.01)
    for _ in range(20):
        cost.judge(0.5, 1.0, num_steps)
    assert cost.stride == longest


@pytest.mark.parametrize(("num_steps", "usual"), [(1, 1), (9, 1), (12, 2), (50, 8), (10_000, 64)])
def test_of_short_steps_some_are_traced_even_if_all_would_be_cheap(num_steps, usual):
    cost = OwnCost(budget=0.01)
    cost.judge(0.0, 1.0, num_steps)
    assert (cost.stride, cost.economy) == (usual, 1)


def test_steps_that_last_a_little_longer_or_shorter_leave_the_stride_alone():
    cost = OwnCost(budget=0.01)
    for num_steps in (50, 40, 60, 30, 50, 21):
        cost.judge(0.0, 1.0, num_steps)
        assert cost.stride == 8
    cost.judge(0.0, 1.0, 4)
    assert cost.stride == 1


def test_a_window_without_training_changes_nothing():
    cost = OwnCost()
    cost.judge(1.0, 0.0, 5)
    cost.judge(1.0, 1.0, 0)
    assert cost.stride == 1
