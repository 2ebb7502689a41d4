"""Side groups of the agent: gloo groups of the model's ranks, on the interface that reaches the master."""

import contextlib
import datetime
import os
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from gradwire_compression.collectives.compat import group_timeout

from gradwire.host.network import interface_to

# Opening a side group must not hold up training for the model group's half hour.
OPEN_SECONDS = 20.0


def open_side_group(model_group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Open a gloo group of the same ranks; its operations get the model group's time-out.

    Raises:
        RuntimeError: The ranks cannot reach each other within `OPEN_SECONDS`; names `GLOO_SOCKET_IFNAME`.
    """
    try:
        with on_master_interface():
            group: dist.ProcessGroup = dist.new_group(
                ranks=dist.get_process_group_ranks(model_group),
                backend="gloo",
                timeout=datetime.timedelta(seconds=OPEN_SECONDS),
                use_local_synchronization=True,
            )
            # A pulse waits as long as the gradients themselves would, for example while one rank evaluates.
            dist.distributed_c10d._set_pg_timeout(group_timeout(model_group), group)
    except RuntimeError as error:
        raise RuntimeError(
            f"the ranks could not open a gloo side group ({error}); set GLOO_SOCKET_IFNAME to the interface that "
            "reaches the other nodes"
        ) from error
    return group


def abandon(group: dist.ProcessGroup | None) -> None:
    """Give up a side group that not all ranks could open; called by all of them, with None where it failed."""
    if group is not None:
        dist.destroy_process_group(group)
    # The store keeps addresses under the group's name, and torch would give the next group of these ranks the same:
    # it counts the names in use.
    names: Any = dist.distributed_c10d._world.pg_names
    names[_Abandoned()] = f"gradwire abandoned {len(names)}"


class _Abandoned:
    """Stands for a group that never was."""


@contextlib.contextmanager
def on_master_interface() -> Iterator[None]:
    """Point gloo to the interface that routes to MASTER_ADDR, unless the user has chosen one.

    Ordinary hosts resolve their own name to 127.0.1.1, on which other hosts cannot reach them.
    """
    name = None if "GLOO_SOCKET_IFNAME" in os.environ else interface_to(os.environ.get("MASTER_ADDR", ""))
    if name is None:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = name
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
