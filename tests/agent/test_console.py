"""Lines on a real terminal beside a real bar of tqdm, and beside a program's own logging."""

import contextlib
import os
import pty
import subprocess
import sys
import termios

# Draws ten bars' worth of progress, with a line and a warning in the middle.
BAR = """
import logging, sys
from gradwire import console
{imports}
console.set_up()
bar = {bar}
for step in bar:
    if step == 5:
        console.say("attached to a run")
        logging.getLogger("gradwire").warning("gradwire: something to know")
"""
WITH_BAR = BAR.format(imports="from tqdm import tqdm", bar="tqdm(range(10), ncols=60, mininterval=0)")
WITHOUT = BAR.format(imports="", bar="range(10)")


def on_terminal(script: str) -> str:
    """Run a script whose stderr is a terminal, and return everything that it wrote there."""
    ours, theirs = pty.openpty()
    # A bar is not drawn on a terminal without rows.
    termios.tcsetwinsize(theirs, (24, 80))
    process = subprocess.Popen([sys.executable, "-c", script], stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    while True:
        # Linux says by an error that the other end is closed.
        with contextlib.suppress(OSError):
            if part := os.read(ours, 65536):
                written += part
                continue
        break
    os.close(ours)
    assert process.wait(60) == 0, written.decode()
    return written.decode()


def screen(written: str) -> list[str]:
    """Return the lines that are left to see: what follows a carriage return covers what was there."""
    lines = []
    for line in written.replace("\r\n", "\n").split("\n"):
        seen = ""
        for part in line.split("\r"):
            seen = part + seen[len(part) :]
        lines.append(seen.rstrip())
    return [line for line in lines if line]


def test_lines_stand_above_a_bar_that_stays_whole() -> None:
    lines = screen(on_terminal(WITH_BAR))
    assert lines[:2] == ["gradwire: attached to a run", "gradwire: something to know"]
    assert len(lines) == 3
    assert lines[2].startswith("100%|")
    assert "10/10" in lines[2]


def test_lines_are_plain_without_a_bar() -> None:
    assert screen(on_terminal(WITHOUT)) == ["gradwire: attached to a run", "gradwire: something to know"]


def test_a_program_with_logging_of_its_own_gets_each_warning_once() -> None:
    own = 'logging.basicConfig(format="own %(message)s")\nconsole.set_up()\n'
    script = WITHOUT.replace("console.set_up()\n", own * 2)
    assert screen(on_terminal(script))[1:] == ["own gradwire: something to know"]


def test_a_program_that_wants_silence_has_it() -> None:
    script = WITHOUT.replace("console.set_up()", 'logging.getLogger("gradwire").setLevel(logging.ERROR)')
    assert screen(on_terminal(script)) == []
