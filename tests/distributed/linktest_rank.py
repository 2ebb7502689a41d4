"""One rank of a link test, run by `bench.ranks`; a host can first slow its own link. Rank 0 prints the test."""

import json
import os
import subprocess
import sys

from gradwire.cli import main

from examples.demo import network


def slow_down(bytes_per_second: int) -> None:
    """Let so much out of this host."""
    discipline = network.shape_of(bytes_per_second).split()
    subprocess.run(["tc", "qdisc", "replace", "dev", "eth0", "root", *discipline], check=True)


if __name__ == "__main__":
    slow = json.loads(sys.argv[1])["slow"]
    if os.environ["GROUP_RANK"] in slow and os.environ["LOCAL_RANK"] == "0":
        slow_down(slow[os.environ["GROUP_RANK"]])
    sys.exit(main(["linktest", "--json"]))
