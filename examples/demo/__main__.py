"""Train a byte-level transformer on two ranks over a 1 Gbit/s link, with Gradwire inside and its server beside it.

First uncompressed for a baseline, then with int8, until Ctrl-C. With --exit it also rolls back before the end and
closes with one line of JSON.
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from examples.demo import network, report
from examples.demo.progress import Progress
from examples.demo.ranks import NUM_RANKS, Ranks, RanksError
from examples.demo.service import Server, ServerError
from examples.demo.story import Schedule, Story

# Fewer leave no room for a baseline, int8 and the steps after the rollback.
FEWEST_STEPS = 60


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__)
    parser.add_argument("--steps", type=int, help="end training after this many steps, not by Ctrl-C")
    parser.add_argument("--exit", action="store_true", help="roll back before the end, print figures, leave")
    parser.add_argument("--data", type=Path, help="keep the server's data and the logs in this new folder")
    options = parser.parse_args()
    if options.exit and options.steps is None:
        options.steps = 120
    if options.steps is not None and options.steps < FEWEST_STEPS:
        parser.error(f"--steps {options.steps}; wanted: {FEWEST_STEPS} or more")
    return options


def data_folder(stack: ExitStack, wanted: Path | None) -> Path:
    """Return a fresh folder; a temporary one goes when the demo ends.

    Its path is short on purpose: the address of a Unix socket in it must stay below 108 bytes.
    """
    if wanted is None:
        folder = Path(tempfile.mkdtemp(prefix="gradwire-demo-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder
    wanted.mkdir(parents=True)
    return wanted.resolve()


def train(ranks: Ranks, story: Story, progress: Progress) -> bool:
    """Follow the training to its end; True if it was interrupted from the keyboard."""
    try:
        story.follow(ranks.lines())
    except KeyboardInterrupt:
        progress.say("stopping after a few more steps; press Ctrl-C again to stop at once")
        ranks.stop_after(story.step)
        story.follow(ranks.lines())
        return True
    return False


def demonstrate(options: argparse.Namespace, stack: ExitStack) -> int:
    progress = Progress()
    ground, reason = network.choose_ground()
    folder = data_folder(stack, options.data)
    server = stack.enter_context(Server(folder))
    progress.say(f"log in at {server.login_link}")
    progress.say(f"link: {ground.link}" + (f" ({reason})" if reason else ""))
    ranks = stack.enter_context(Ranks(ground, server, folder, steps=options.steps))
    story = Story(server, progress, Schedule.of(options.steps, rolls_back=options.exit), num_ranks=NUM_RANKS)
    if train(ranks, story, progress):
        progress.say("training has ended")
        return 0
    if not options.exit:
        progress.say("training has ended; the server stays until Ctrl-C")
        signal.pause()
    figures = report.summarise(server, story, num_ranks=NUM_RANKS, link=ground.link)
    print(json.dumps(figures), flush=True)
    return 0


def end_by_signal(number: int, frame: FrameType | None) -> None:
    """Turn a signal into an exit, so that everything that was started is ended."""
    sys.exit(128 + number)


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, end_by_signal)
    signal.signal(signal.SIGHUP, end_by_signal)
    try:
        with ExitStack() as stack:
            return demonstrate(options, stack)
    except KeyboardInterrupt:
        return 130
    except (RanksError, ServerError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
