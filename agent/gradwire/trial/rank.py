"""A process of a trial: seeds, then the script under `gradwire run`.

torchrun ... --no-python python -m gradwire.trial.rank train.py ARGUMENTS
"""

import os
import random
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gradwire.launch import run_script
from gradwire.trial.arm import TrialEnd, arm_of_environment


def main(command: Sequence[str]) -> None:
    """Run a script, or `-m` and a module, as a rank of the arm that the environment names."""
    arm = arm_of_environment()
    if arm is None:
        raise SystemExit("gradwire: this is started by `gradwire trial`, which says what to do")
    seed_process(arm.seed + int(os.environ.get("RANK", "0")))
    # Watched from before the script is imported, since that may keep `backward` under another name.
    _ = arm.losses
    try:
        run_script(command)
    except TrialEnd:
        if dist.is_initialized():
            dist.destroy_process_group()
        raise
    finally:
        arm.write()


def seed_process(seed: int) -> None:
    """Seed every generator that a script may draw from: Python's, numpy's where it is, torch's on all devices.

    Ranks get different seeds, as processes that seed nothing have: they draw different data and drop different
    units. A script that seeds by itself does so later, and alike in both arms.
    """
    random.seed(seed)
    torch.manual_seed(seed)
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(seed % 2**32)


if __name__ == "__main__":
    main(sys.argv[1:])
