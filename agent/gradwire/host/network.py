"""Network interfaces as the operating system sees them."""

import os
import socket
import struct
from pathlib import Path

from msgspec import Struct

_SIOCGIFADDR = 0x8915

_DEVICES = Path("/sys/class/net")
# Unlike /sys, /proc shows the network namespace of whoever reads it.
_COUNTERS = Path("/proc/self/net/dev")


class Traffic(Struct, frozen=True):
    """What an interface counted since the machine started."""

    received_bytes: int
    sent_bytes: int
    # Packets lost or damaged, both ways.
    num_errors: int


def training_interface() -> str:
    """Return the interface that gradients leave by: the user's choice, or the one that leads to MASTER_ADDR."""
    return os.environ.get("GLOO_SOCKET_IFNAME") or interface_to(os.environ.get("MASTER_ADDR", "")) or ""


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
    return next((name for _, name in socket.if_nameindex() if address_of(name) == address), None)


def address_of(interface: str) -> str | None:
    """Return an interface's IPv4 address, None without one."""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            request = struct.pack("256s", interface.encode()[:15])
            return socket.inet_ntoa(fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[20:24])
        except OSError:
            return None


def nominal_bytes_per_second(interface: str, devices: Path = _DEVICES) -> float | None:
    """Return the interface's speed, bytes per second; loopback and virtual links do not have one."""
    device = devices / interface
    if not interface or not (device / "device").exists():
        return None
    try:
        megabits = int((device / "speed").read_text())
    except (OSError, ValueError):
        return None
    return megabits * 1e6 / 8 if megabits > 0 else None


def traffic(interface: str, counters: Path = _COUNTERS) -> Traffic | None:
    """Return what the interface has counted, None if there is no such interface."""
    try:
        lines = counters.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, rest = line.partition(":")
        if colon and name.strip() == interface:
            # Received: bytes packets errs drop ...; sent the same, from the ninth on.
            numbers = [int(number) for number in rest.split()]
            return Traffic(numbers[0], numbers[8], numbers[2] + numbers[3] + numbers[10] + numbers[11])
    return None


def rdma_devices(devices: Path = Path("/sys/class/infiniband")) -> tuple[str, ...]:
    """Return the machine's RDMA devices by name; empty if there is none."""
    try:
        return tuple(sorted(path.name for path in devices.iterdir()))
    except OSError:
        return ()
