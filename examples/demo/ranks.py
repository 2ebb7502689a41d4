"""The training processes as the demo sees them: started by the hub, heard line by line, stopped at one step."""

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from examples.demo import relay
from examples.demo.network import Ground
from examples.demo.service import Server

NUM_RANKS = 2
# A rank reads the step to stop at before each step, and none can be this far ahead of the newest line.
STOP_MARGIN_STEPS = 5
GRACE_SECONDS = 15.0


class RanksError(RuntimeError):
    """Raised when a rank ended with an error; the text holds the end of what the ranks wrote."""


class Ranks:
    """Two ranks in training, from construction until the context ends."""

    def __init__(self, ground: Ground, server: Server, folder: Path, *, steps: int | None) -> None:
        self._stop_file = folder / "stop"
        self._log = folder / "ranks.log"
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        train = [sys.executable, "-m", "examples.demo.train", "--stop-file", str(self._stop_file)]
        if steps is not None:
            train += ["--steps", str(steps)]
        hub = [sys.executable, "-m", "examples.demo.hub", "--ranks", str(NUM_RANKS)]
        if ground.is_shaped:
            hub.append("--shaped")
        environment = {
            **os.environ,
            "GRADWIRE_SERVER": server.url,
            "GRADWIRE_TOKEN": server.ingest_token,
            "GRADWIRE_SPOOL": str(folder / "spool"),
            "GRADWIRE_LINK_NOTE": ground.note,
        }
        self._control, theirs = socket.socketpair()
        with theirs, self._log.open("wb") as log:
            # A session of its own keeps Ctrl-C away from the ranks: they are told the step to stop at instead.
            self._hub = subprocess.Popen(
                [*ground.prefix, *hub, "--", *train],
                env=environment,
                stdin=theirs.fileno(),
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        threading.Thread(target=self._read, daemon=True).start()
        if ground.is_shaped:
            _, descriptors, _, _ = socket.recv_fds(self._control, 16, 1)
            if descriptors:
                relay.start(socket.socket(fileno=descriptors[0]), server.address)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Yield what the ranks report until all have ended.

        Raises:
            RanksError: One ended with an error.
        """
        while (line := self._lines.get()) is not None:
            yield line
        code = self._hub.wait()
        if code:
            end = "\n".join(self._log.read_text(errors="replace").splitlines()[-30:])
            raise RanksError(f"training ended with exit code {code}:\n{end}")

    def stop_after(self, newest_step: int) -> None:
        """Let all ranks end at the same step soon after `newest_step`, the newest that was heard of."""
        partial = self._stop_file.with_suffix(".partial")
        partial.write_text(str(newest_step + STOP_MARGIN_STEPS))
        partial.rename(self._stop_file)

    def _read(self) -> None:
        assert self._hub.stdout is not None
        for line in self._hub.stdout:
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process of the training that is still there."""
        self._control.close()
        try:
            self._hub.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self._hub.pid, signal.SIGKILL)
            self._hub.wait()
