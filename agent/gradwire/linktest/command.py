"""`gradwire linktest`, on every rank of a torchrun command."""

import argparse
import os
from typing import Any

import msgspec

from gradwire.errors import SettingError
from gradwire.wording import printable

_WANTED = "torchrun --nproc-per-node 2 --no-python gradwire linktest"


def add(commands: Any) -> None:
    """Add the command to the parser's."""
    linktest = commands.add_parser(
        "linktest", help="measure the links between ranks, pair by pair and collective by collective"
    )
    linktest.add_argument("--json", action="store_true", help="print one line of JSON")
    linktest.set_defaults(command=run)


def run(options: argparse.Namespace) -> int:
    """Test the links as one rank of torchrun's; the first prints what was found and the others nothing.

    Raises:
        SettingError: It is not started by torchrun, or there is only one rank.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        raise SettingError(f"a link test needs two ranks or more; wanted: {_WANTED}")
    import torch
    import torch.distributed as dist

    from gradwire.groups import on_master_interface
    from gradwire.linktest.measure import measure
    from gradwire.linktest.table import table

    torch.set_num_threads(1)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    with on_master_interface():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        group = dist.group.WORLD
        assert group is not None
        test = measure(group, device)
        if dist.get_rank() == 0:
            print(printable(msgspec.json.encode(test).decode() if options.json else table(test)), flush=True)
    finally:
        dist.destroy_process_group()
    return 0
