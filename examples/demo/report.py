"""The demo's last line: figures read back from the server, and the ranks' hashes."""

import time
from statistics import mean, median
from typing import Any

from examples.demo.service import Server, ServerError
from examples.demo.story import CODEC, SETTLING_STEPS, Story

DELIVERY_DEADLINE_SECONDS = 30.0


def summarise(server: Server, story: Story, *, num_ranks: int, link: str) -> dict[str, Any]:
    """Return the figures of a demo that was rolled back and has ended.

    Raises:
        ServerError: The run did not arrive whole, or a change was not applied.
    """
    story.note(_wait_for_end(server, story.run))
    compressed, rolled_back = _applied(story, "set"), _applied(story, "rollback")
    baseline = _Stretch(server, story.run, SETTLING_STEPS + 1, compressed["step"] - 1)
    int8 = _Stretch(server, story.run, compressed["step"] + SETTLING_STEPS, rolled_back["step"] - 1)
    return {
        "run": story.run,
        "steps": story.step,
        "ranks": num_ranks,
        "link": link,
        "exposed_transfer_share": {"none": baseline.share, CODEC: int8.share},
        "step_seconds": {"none": baseline.step_seconds, CODEC: int8.step_seconds},
        "speedup": round(baseline.step_seconds / int8.step_seconds, 3),
        "rollback": {
            "requested_to_last_rank_seconds": round(rolled_back["seconds"], 3),
            "step": rolled_back["step"],
            "ranks": rolled_back["num_ranks_confirmed"],
        },
        "loss_first": round(mean(story.first_losses), 4),
        "loss_last": round(mean(story.last_losses), 4),
        "replicas_equal": len(story.hashes) == num_ranks and len(set(story.hashes.values())) == 1,
    }


class _Stretch:
    """Steps `first_step` to `last_step`, all with one codec: seconds per step and the exposed transfer share.

    Medians over windows of about a second, so that a machine that was busy with something else for a moment does
    not decide about the ratio of two stretches.
    """

    def __init__(self, server: Server, run: str, first_step: int, last_step: int) -> None:
        windows = server.windows(run, first_step, last_step)
        if not windows:
            raise ServerError(f"the server has nothing about steps {first_step} to {last_step}")
        self.step_seconds = round(median(window["step"] / window["num_rank_steps"] for window in windows), 4)
        # Unknown is not zero: a window whose transfer was not measured says nothing.
        shares = [window["exposed_transfer"] / window["known_step"] for window in windows if window["known_step"]]
        self.share = round(median(shares), 4) if shares else None


def _wait_for_end(server: Server, run: str) -> dict[str, Any]:
    """Return the page's data once the ranks' last batch has arrived."""
    deadline = time.monotonic() + DELIVERY_DEADLINE_SECONDS
    while True:
        view = server.run(run)
        if view["summary"]["status"]["name"] == "finished":
            return view
        if time.monotonic() > deadline:
            raise ServerError(f"the run did not arrive whole: its status is {view['summary']['status']}")
        time.sleep(0.2)


def _applied(story: Story, kind: str) -> dict[str, Any]:
    change = story.changes.get(kind)
    if change is None or change["state"] != "applied":
        raise ServerError(f"the {kind} that the demo asked for was not applied: {change}")
    return change
