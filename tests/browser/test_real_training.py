"""Two real torch processes are steered from a real browser, and confirm it themselves."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browsing import Person
from playwright.sync_api import expect
from server_process import ServerProcess, environment

pytestmark = [pytest.mark.browser, pytest.mark.distributed, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).with_name("train_until.py")
END_SECONDS = 90.0


class Ranks:
    """What the two processes printed, and the way to end them."""

    def __init__(self, output: Path, stop_file: Path) -> None:
        self._output, self._stop_file = output, stop_file

    def codecs(self) -> dict[int, list[tuple[int, str]]]:
        """Return (step, codec) of every change, by rank."""
        changes: dict[int, list[tuple[int, str]]] = {0: [], 1: []}
        for line in self._output.read_text().splitlines():
            if line.startswith("{"):
                said = json.loads(line)
                changes[said["rank"]].append((said["step"], said["codec"]))
        return changes

    def stop_after(self, step: int) -> None:
        """Let both end at a step that neither has reached."""
        partial = self._stop_file.with_suffix(".partial")
        partial.write_text(str(step))
        partial.rename(self._stop_file)


@contextmanager
def two_ranks(server: ServerProcess, folder: Path) -> Iterator[Ranks]:
    """Train on two processes of this machine under torchrun; all have ended when the context does."""
    output, stop_file = folder / "output", folder / "stop"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # A socket's path in the spool has to stay short.
    settings = {"GRADWIRE_SPOOL": str(folder / "s"), "OMP_NUM_THREADS": "1"}
    with output.open("wb") as log:
        process = subprocess.Popen(
            [*command, str(PROGRAM), str(stop_file)],
            env=environment(server) | settings,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield Ranks(output, stop_file)
        assert process.wait(END_SECONDS) == 0, output.read_text()[-4000:]
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.wait()


def run_of(server: ServerProcess, name: str) -> str:
    """Wait until a run of this name has reported steps, and return its id."""
    deadline = time.monotonic() + END_SECONDS
    client = server.operator()
    while time.monotonic() < deadline:
        for run in client.get("/api/v1/runs").json()["runs"]:
            if run["name"] == name and run["step"] > 0:
                return str(run["id"])
        time.sleep(0.1)
    raise AssertionError(f"no run called {name} reported within {END_SECONDS:.0f} s")


def test_two_processes_are_switched_and_rolled_back_from_the_browser(
    person: Person, server: ServerProcess, tmp_path: Path
) -> None:
    with two_ranks(server, tmp_path) as ranks:
        run = run_of(server, "real")
        page = person.open(f"/runs/{run}")
        facts, line = page.locator(".run-facts"), page.locator("#rollback-line")
        expect(page.locator("#liveness")).to_have_text("Live")
        expect(facts).to_contain_text("Uncompressed on 2 processes")

        page.locator("#codec-int8").check()
        page.get_by_role("button", name="Apply").click()
        page.get_by_role("dialog").get_by_role("button", name="Turn on").click()
        expect(facts).to_contain_text("int8 on 2 processes since step")

        page.get_by_role("button", name="Roll back to uncompressed").first.click()
        expect(line).to_have_text(
            re.compile(r"Uncompressed on all 2 processes since step [\d\s]+, [\d.]+\ss after")
        )
        found = re.search(r"since step ([\d\s]+),", line.inner_text())
        assert found is not None
        step = int(re.sub(r"\D", "", found[1]))

        # Ranks print their changes in order, both of them at the same steps.
        deadline = time.monotonic() + 30
        while any(len(changes) < 3 for changes in ranks.codecs().values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        codecs = ranks.codecs()
        assert [codec for _, codec in codecs[0]] == ["none", "int8", "none"]
        assert codecs[0] == codecs[1]
        assert codecs[0][2][0] == step

        ranks.stop_after(newest_step(server, run) + 2000)
        expect(facts).to_contain_text("Finished at", timeout=60_000)


def newest_step(server: ServerProcess, run: str) -> int:
    return int(server.operator().get(f"/api/v1/runs/{run}").json()["summary"]["step"])
