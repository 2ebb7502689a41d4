import logging

import pytest
from gradwire_compression import PlanMismatchError, Silence
from gradwire_compression.observer import GuardedObserver


class _Failing(Silence):
    def __init__(self, error):
        self.error = error
        self.num_calls = 0

    def begin_sync(self):
        self.num_calls += 1
        raise self.error

    def flushed(self, num_steps, norm):
        self.num_calls += 1
        raise self.error


def test_guard_logs_each_method_once_and_keeps_calling_it(caplog):
    observer = _Failing(ValueError("mine"))
    guard = GuardedObserver(observer)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            guard.begin_sync()
            guard.flushed(1, 1.0)
    assert observer.num_calls == 6
    assert [record.getMessage().split(" raised")[0] for record in caplog.records] == [
        "observer.begin_sync",
        "observer.flushed",
    ]
    assert all(record.exc_info is not None for record in caplog.records)


def test_guard_lets_a_plan_mismatch_through():
    with pytest.raises(PlanMismatchError):
        GuardedObserver(_Failing(PlanMismatchError("rank 1 differs"))).begin_sync()
