"""The rule of tests/conftest.py, tried in a suite of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"

SUITE = """
import pytest

@pytest.mark.browser
def test_page():
    pytest.skip("no browser here")

def test_plain():
    pytest.skip("skipped for a reason of its own")
"""


@pytest.mark.parametrize(("ci", "counts"), [("true", "1 failed, 1 skipped"), ("", "2 skipped")])
def test_skip_of_a_browser_test_fails_on_ci_only(tmp_path: Path, ci: str, counts: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.read_text())
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  browser: needs one\n")
    outcome = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        env=os.environ | {"CI": ci, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert counts in outcome.stdout, outcome.stdout
    assert outcome.returncode == (1 if ci else 0)
