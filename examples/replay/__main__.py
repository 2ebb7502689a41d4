"""Play a made-up training against a running server, to look at its pages without training anything.

    gradwire-server token create --kind ingest
    python -m examples.replay --server http://127.0.0.1:8420 --token TOKEN

History comes at once, then a window each second; changes made on the page are applied as a training would.
"""

import argparse
import contextlib
import os

from examples.replay.replay import Replay
from examples.replay.training import Training


def main() -> int:
    """Tell 1,200 steps of history, then go on until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m examples.replay", description=__doc__.partition("\n")[0])
    parser.add_argument("--server", default=os.environ.get("GRADWIRE_SERVER", "http://127.0.0.1:8420"))
    parser.add_argument(
        "--token", default=os.environ.get("GRADWIRE_TOKEN"), help="an ingest token ($GRADWIRE_TOKEN)"
    )
    parser.add_argument("--run", default="replayed-llama-1b", help="the run's name")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end after this long")
    options = parser.parse_args()
    if not options.token:
        parser.error("an ingest token is needed: gradwire-server token create --kind ingest")
    with Replay(options.server, options.token, Training(name=options.run)) as replay:
        replay.tell(1200)
        print(f"{options.server}/runs/{replay.run_id} is live; Ctrl-C ends it", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            replay.live(options.seconds)
        replay.end()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
