"""From steps to the sentence: what check windows of a real training make the service say."""

import time

import pytest
from distributed.ranks import run_ranks
from distributed.training import attach, batch, make_model, pulse_with_every_exchange, train_step
from gradwire.steering.checks import Budget
from gradwire_compression import plain
from gradwire_compression.lossy import LossyBucket
from gradwire_protocol.records import StepWindow
from gradwire_server.runs.reading import run_view
from gradwire_server.verdict.paying import MIN_CHECKS
from stored_run import StoredRun, connection

__all__ = ["connection"]

pytestmark = pytest.mark.distributed

SLOW_SECONDS = 0.015


def _slow_exact() -> None:
    """Let every exact exchange of this process take longer, as over a slow link."""
    start = plain.start_exact

    def slow(*arguments, **options):
        time.sleep(SLOW_SECONDS)
        return start(*arguments, **options)

    plain.start_exact = slow


def _slow_codec() -> None:
    """Let every compressed exchange of this process take longer, as on a slow processor."""
    average = LossyBucket.average

    def slow(self, *arguments):
        time.sleep(SLOW_SECONDS)
        return average(self, *arguments)

    LossyBucket.average = slow


def _train(rank, world_size, folder, what_is_slow):
    pulse_with_every_exchange()
    {"exact": _slow_exact, "codec": _slow_codec}[what_is_slow]()
    ddp, optimizer = make_model()
    session = attach(ddp, optimizer, folder, plan={"codec": "int8", "min_elements": 64})
    session._steering._checks._budget = Budget(1e9)
    records = []
    session._outlet._reporter.report = lambda record, **_: records.append(record)
    for step in range(66 * MIN_CHECKS + 60):
        loss = train_step(ddp, optimizer, batch(rank, step))
        session.step(loss=loss, samples=16)
    session._recorder.close(10.0)
    return [record for record in records if isinstance(record, StepWindow)]


@pytest.mark.parametrize("what_is_slow", ["exact", "codec"])
def test_service_tells_which_side_is_faster_and_what_it_saved(what_is_slow, tmp_path, connection):
    windows = run_ranks(2, _train, str(tmp_path), what_is_slow, timeout=120)[0]
    run = StoredRun(connection)
    run.switch(1, 0, "int8")
    for window in windows:
        run.send(window)
    view = run_view(connection, run.id, run.now)
    assert view is not None
    verdict = view.summary.verdict
    assert verdict.num_checks >= MIN_CHECKS
    assert view.saving.num_checks == verdict.num_checks
    assert verdict.speedup.value is not None
    assert view.saving.saved_hours.value is not None
    if what_is_slow == "exact":
        assert verdict.speedup.value > 1
        assert view.saving.saved_hours.value > 0
    else:
        assert verdict.speedup.value < 1
        assert view.saving.saved_hours.value < 0
