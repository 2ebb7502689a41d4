"""Side groups of the agent: gloo groups of the model's ranks, on the interface that reaches the master."""

import contextlib
import datetime
import os
import socket
import struct
from collections.abc import Iterator

import torch.distributed as dist
from gradwire_compression.collectives.compat import group_timeout

# Opening a side group must not hold up training for the model group's half hour.
OPEN_SECONDS = 20.0

_SIOCGIFADDR = 0x8915


def open_side_group(model_group: dist.ProcessGroup) -> dist.ProcessGroup:
    """Open a gloo group of the same ranks; its operations get the model group's time-out.

    Raises:
        RuntimeError: The ranks cannot reach each other within `OPEN_SECONDS`; names `GLOO_SOCKET_IFNAME`.
    """
    try:
        with _interface():
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


@contextlib.contextmanager
def _interface() -> Iterator[None]:
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


def interface_to(host: str) -> str | None:
    """Return the name of the interface that packets to `host` leave by, None if that cannot be told."""
    if not host:
        return None
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # Connecting a datagram socket sends nothing; it only asks the routing table.
            probe.connect((host, 9))
            address = probe.getsockname()[0]
    except OSError:
        return None
    return next((name for _, name in socket.if_nameindex() if _address_of(name) == address), None)


def _address_of(interface: str) -> str | None:
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None
