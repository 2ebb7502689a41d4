"""One rule for the whole suite: on CI the tests that need a special machine run, they do not skip."""

import os
import signal
from collections.abc import Generator

import pytest
from hypothesis import settings

# Property tests judge results, not time, and CI tries the same examples every time; developers try new ones.
settings.register_profile("gradwire", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("gradwire")

# A shell that starts the suite in the background has it ignore interrupts, and every process it starts as well;
# tests that interrupt a process need the usual meaning.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

MUST_RUN = ("browser", "distributed", "netns", "prometheus")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    markers = [name for name in MUST_RUN if item.get_closest_marker(name)]
    if report.skipped and not hasattr(report, "wasxfail") and markers and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = (
            f"{item.nodeid} is marked {', '.join(markers)} and skipped; on CI it must run: {report.longrepr}"
        )
    return report
