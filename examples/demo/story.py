"""What happens in the demo, step by step: a baseline, compression on, and with `--exit` the way back."""

import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from examples.demo.progress import Progress
from examples.demo.service import Server

CODEC = "int8"
# The first steps allocate and rebuild buckets, the first after a switch fill buffers: no figure counts them.
SETTLING_STEPS = 5
NUM_EDGE_STEPS = 5
VIEW_SECONDS = 1.0


@dataclass(frozen=True)
class Schedule:
    """The steps at which changes are asked for; None for never."""

    compress_at: int
    roll_back_at: int | None

    @classmethod
    def of(cls, steps: int | None, *, rolls_back: bool) -> "Schedule":
        """Give a third of the steps to the baseline and the last sixth to the time after the rollback."""
        if steps is None:
            return cls(40, None)
        return cls(steps // 3, steps - steps // 6 if rolls_back else None)


class Story:
    """Watches the ranks' lines, asks the server for changes, and remembers what the final line needs."""

    def __init__(self, server: Server, progress: Progress, schedule: Schedule, *, num_ranks: int) -> None:
        self._server = server
        self._progress = progress
        self._schedule = schedule
        self._view: dict[str, Any] | None = None
        self._viewed_at = 0.0
        self.step = 0
        # The step at whose end each change was asked for.
        self.compress_step: int | None = None
        self.rollback_step: int | None = None
        # The newest change of each kind, "set" and "rollback", as the run's page shows it.
        self.changes: dict[str, dict[str, Any]] = {}
        self.hashes: dict[int, str] = {}
        self.first_losses: list[float] = []
        self.last_losses: deque[float] = deque(maxlen=NUM_EDGE_STEPS * num_ranks)

    @property
    def run(self) -> str:
        """Id of the run, "" until the server knows it."""
        return self._view["summary"]["id"] if self._view else ""

    def follow(self, lines: Iterable[dict[str, Any]]) -> None:
        """Follow the training until its lines end."""
        for line in lines:
            if "hash" in line:
                self.hashes[line["rank"]] = line["hash"]
                continue
            self.last_losses.append(line["loss"])
            if line["step"] <= NUM_EDGE_STEPS:
                self.first_losses.append(line["loss"])
            if line["rank"] == 0:
                self.step = line["step"]
                self._look()
                self._act()
                self._progress.show(line, self._view)

    def _look(self) -> None:
        """Read the run's page data, once a second at most: the server shares the cores with the training."""
        if time.monotonic() - self._viewed_at < VIEW_SECONDS:
            return
        if self.run:
            self.note(self._server.run(self.run))
        elif runs := self._server.runs():
            self.note(self._server.run(runs[0]["id"]))
            self._server.watch(self.run)
            self._progress.say(f"watch it at {self._server.url}/runs/{self.run}")
        self._viewed_at = time.monotonic()

    def note(self, view: dict[str, Any]) -> None:
        """Remember what the run's page shows now."""
        self._view = view
        change = view["last_change"]
        if change and change != self.changes.get(change["kind"]):
            self.changes[change["kind"]] = change
            if change["state"] == "applied":
                codec = "uncompressed" if change["codec"] == "none" else change["codec"]
                self._progress.say(
                    f"{codec} on {change['num_ranks_confirmed']} of {change['num_ranks']} ranks "
                    f"since step {change['step']}, {change['seconds']:.1f} s after the request"
                )

    def _act(self) -> None:
        if not self.run:
            return
        if self.compress_step is None and self.step >= self._schedule.compress_at:
            self.compress_step = self.step
            self._progress.say(f"turning on {CODEC}")
            self._server.set_codec(self.run, CODEC, reason="the demo's baseline is measured")
            self._progress.say("now press Roll back and watch this line")
        roll_back_at = self._schedule.roll_back_at
        if self.rollback_step is None and roll_back_at is not None and self.step >= roll_back_at:
            self.rollback_step = self.step
            self._progress.say("rolling back")
            self._server.roll_back(self.run, reason="the demo ends")
