import threading

import pytest
import torch
from gradwire_compression.collectives.lane import StreamLane, ThreadLane


def test_lane_runs_jobs_in_order_beside_the_caller():
    lane, order, gate = ThreadLane(), [], threading.Event()

    def job(number):
        gate.wait(10)
        order.append((number, threading.current_thread().name))
        return torch.tensor(number)

    futures = [lane.submit(lambda number=number: job(number), "job") for number in range(5)]
    assert order == []
    gate.set()
    assert [int(future.wait()) for future in futures] == list(range(5))
    assert order == [(number, "gradwire-lane") for number in range(5)]
    lane.close()


def test_stream_lane_without_streams_runs_a_job_at_once():
    lane = StreamLane(torch.device("cpu"))
    future = lane.submit(lambda: torch.tensor(torch.is_grad_enabled()), "job")
    assert future.done()
    assert not future.wait()
    lane.close()


@pytest.mark.parametrize("make", [ThreadLane, lambda: StreamLane(torch.device("cpu"))])
def test_lane_names_what_failed_and_fails_everything_after_it(make):
    lane = make()

    def fail():
        raise ValueError("wire cut")

    first = lane.submit(fail, "int8: averaging bucket 3")
    second = lane.submit(lambda: torch.ones(1), "int8: averaging bucket 4")
    for number, future in ((3, first), (4, second)):
        # A callback's exception passes through C++, which keeps its text only.
        with pytest.raises(RuntimeError, match=f"ExchangeError: int8: averaging bucket {number} failed: wire cut"):
            future.wait()
    lane.close()


def test_drain_waits_for_what_is_queued():
    lane, is_done, gate = ThreadLane(), [], threading.Event()

    def job():
        gate.wait(10)
        is_done.append(True)
        return torch.ones(1)

    lane.submit(job, "job")
    threading.Timer(0.05, gate.set).start()
    lane.drain()
    assert is_done == [True]
    lane.close()


def test_lane_ends_with_close():
    lane = ThreadLane()
    lane.close()
    assert "gradwire-lane" not in [thread.name for thread in threading.enumerate()]
