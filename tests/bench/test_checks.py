"""The arithmetic of the check windows' benchmark; its training needs network namespaces and a quiet machine."""

import pytest
from stored_run import steps

from bench.checks import stated


def _windows(num_checks: int, exact: float) -> list:
    windows, at = [], 0
    for _ in range(num_checks):
        windows.append(steps(at, 50, step=0.1, transfer=0.01, codec="int8"))
        windows.append(steps(at + 50, 2, step=0.9, is_check=True, is_settling=True))
        windows.append(steps(at + 52, 18, step=exact, is_check=True))
        windows.append(steps(at + 70, 2, step=0.9, codec="int8", transfer=0.01, is_settling=True))
        at += 72
    return [*windows, steps(at, 50, step=0.1, transfer=0.01, codec="int8")]


def test_the_service_states_what_the_windows_hold():
    verdict = stated(_windows(5, 0.25)).summary.verdict
    assert verdict.num_checks == 5
    assert verdict.speedup.value == pytest.approx(2.5)


def test_too_few_windows_state_no_speed():
    assert stated(_windows(2, 0.25)).summary.verdict.speedup.value is None
