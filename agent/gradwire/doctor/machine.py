"""Checks of this machine: frameworks, backend, kernels, compiler, interface, link, spool."""

import importlib.metadata
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator

from gradwire.doctor.findings import Finding, failed, ok, warning
from gradwire.host.network import address_of, interface_to, nominal_bytes_per_second, traffic
from gradwire.host.processor import instruction_sets
from gradwire.transport import place

# What the agent's part of the distribution asks for.
MIN_TORCH = (2, 9)
_INSTALL_AGENT = "pip install 'gradwire[agent]'"

# The first known to hand a restart the store of the attempt before.
_SHARES_STORE = (2, 13)

# Below this the spool cannot take an outage of a day.
_MIN_FREE_BYTES = 1 << 30


def examine() -> Iterator[Finding]:
    """Yield the findings of all checks that need no server, in the order in which they are of use."""
    yield frameworks()
    yield backend()
    yield kernels()
    yield compiler()
    name, finding = interface()
    yield finding
    yield link(name)
    yield spool()
    yield from restarts()


def frameworks() -> Finding:
    """Return the versions of what training needs."""
    version = _version("torch")
    if version is None:
        return failed("framework", "torch is not installed, so nothing can be trained here", _INSTALL_AGENT)
    if _numbers(version) < MIN_TORCH:
        wanted = ".".join(map(str, MIN_TORCH))
        return failed("framework", f"torch {version} lacks what Gradwire needs: {wanted} or newer", _INSTALL_AGENT)
    missing = [name for name in ("numpy", "httpx") if _version(name) is None]
    if missing:
        return failed("framework", f"torch {version}, but {' and '.join(missing)} missing", _INSTALL_AGENT)
    others = [f"{name} {_version(name)}" for name in ("numpy", "httpx", "triton") if _version(name)]
    return ok("framework", ", ".join([f"torch {version}", *others]))


def backend() -> Finding:
    """Return which communication backends torch has here, and whether that fits the devices."""
    if not _has("torch"):
        return failed("backend", "unknown without torch", _INSTALL_AGENT)
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        return failed("backend", "this torch is built without gloo, which steering needs", _INSTALL_AGENT)
    if not torch.cuda.is_available():
        return ok("backend", "gloo; no CUDA device, so training runs on the CPU")
    devices = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    if not dist.is_nccl_available():
        return failed("backend", f"{devices}, but this torch is built without NCCL", _INSTALL_AGENT)
    return ok("backend", f"gloo and NCCL; {devices}")


def kernels() -> Finding:
    """Return which kernels run here."""
    if not _has("torch"):
        return failed("kernels", "unknown without torch", _INSTALL_AGENT)
    import torch
    from gradwire_compression import notes
    from gradwire_compression.kernels import dispatch

    sets = ", ".join(instruction_sets()) or "none known"
    if torch.cuda.is_available() and not dispatch.has_triton():
        return warning("kernels", "; ".join(notes()), "pip install triton")
    if not dispatch.is_compiled():
        return warning(
            "kernels",
            f"C kernels are not built, so codecs run as slower torch operations (vector instructions: {sets})",
            "pip install --force-reinstall --no-deps --no-cache-dir gradwire",
        )
    gpu = "Triton for CUDA tensors, " if torch.cuda.is_available() else ""
    return ok("kernels", f"{gpu}C for CPU tensors (vector instructions: {sets})")


def compiler() -> Finding:
    """Return whether C kernels could be built here; it does not matter once they are."""
    found = next((path for path in map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang")) if path), None)
    if found is not None:
        return ok("compiler", found)
    if _has("torch"):
        from gradwire_compression.kernels import dispatch

        if dispatch.is_compiled():
            return ok("compiler", "none, and none is needed: the C kernels are built")
    return warning("compiler", "no C compiler, so C kernels cannot be built", "apt-get install gcc")


def interface() -> tuple[str, Finding]:
    """Return the interface that gradients leave by, and whether other nodes can reach this one on it."""
    chosen = os.environ.get("GLOO_SOCKET_IFNAME", "")
    names = [name for _, name in socket.if_nameindex()]
    if chosen:
        if chosen in names:
            return chosen, ok("interface", f"{chosen}, chosen by GLOO_SOCKET_IFNAME")
        return "", failed(
            "interface",
            f"GLOO_SOCKET_IFNAME names {chosen!r}, which does not exist; there are {', '.join(names)}",
            "unset GLOO_SOCKET_IFNAME",
        )
    master = os.environ.get("MASTER_ADDR", "")
    name = interface_to(master) or ""
    if master and not name:
        return "", failed("interface", f"no interface leads to MASTER_ADDR {master!r}", f"ping {master}")
    if name:
        return name, ok("interface", f"{name}, which leads to MASTER_ADDR {master}")
    return _first_outside(names), _own_name(names)


def _own_name(names: list[str]) -> Finding:
    """Gloo takes the interface of the host's own name where nothing says better."""
    host = socket.gethostname()
    try:
        address = socket.gethostbyname(host)
    except OSError:
        address = ""
    outside = _first_outside(names)
    if address and not address.startswith("127."):
        return ok("interface", f"the host name {host} resolves to {address}")
    if not outside:
        return ok("interface", "loopback only: ranks on this machine reach each other, other machines do not")
    resolved = f"resolves to {address}" if address else "resolves to nothing"
    return warning(
        "interface",
        f"the host name {host} {resolved}, where gloo of other nodes cannot reach this one",
        f"export GLOO_SOCKET_IFNAME={outside}",
    )


def link(name: str) -> Finding:
    """Return the interface's nominal speed and whether it lost packets."""
    given = os.environ.get("GRADWIRE_LINK_BYTES_PER_SECOND", "")
    measure = "torchrun ... --no-python gradwire linktest"
    if not name:
        return warning("link", "unknown, as no interface leads to other machines", measure)
    counted = traffic(name)
    if counted is not None and counted.num_errors:
        text = f"{name} lost or damaged {counted.num_errors} packets since the machine started"
        return warning("link", text, f"ethtool -S {name}")
    if given:
        return ok("link", f"{given} bytes per second, by GRADWIRE_LINK_BYTES_PER_SECOND")
    speed = nominal_bytes_per_second(name)
    if speed is None:
        return warning("link", f"{name} states no speed; a link test measures it", measure)
    return ok("link", f"{name}, {8 * speed / 1e9:g} Gbit/s nominal")


def spool() -> Finding:
    """Return whether measurements can wait on disk while the server is away."""
    root = place.default_root()
    existing = next(path for path in (root, *root.parents) if path.exists())
    try:
        # What permissions promise, a read-only file system does not keep.
        with tempfile.TemporaryFile(dir=existing):
            free = shutil.disk_usage(existing).free
    except OSError:
        return warning(
            "spool", f"{root} cannot be written", f"export GRADWIRE_SPOOL={place.temporary_root()}/spool"
        )
    text = f"{root}, {free / 1e9:.1f} GB free"
    if free < _MIN_FREE_BYTES:
        return warning("spool", text, f"gradwire sync {root}")
    return ok("spool", text)


def restarts() -> Iterator[Finding]:
    """Yield a warning where restarts would hang; only what torchrun started knows of any."""
    number, version = os.environ.get("TORCHELASTIC_MAX_RESTARTS", ""), _version("torch")
    if not number.isdecimal() or int(number) == 0 or version is None or _numbers(version) < _SHARES_STORE:
        return
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        yield warning(
            "restarts",
            f"torchrun of torch {version} hands a restart the store of the attempt before, in which gloo finds "
            "addresses that are gone, and waits for them",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --rdzv-backend c10d ...",
        )


def _first_outside(names: list[str]) -> str:
    """Return the first interface with an address that is not loopback, empty without one."""
    addresses = {name: address_of(name) for name in names}
    return next((name for name, address in addresses.items() if address and not address.startswith("127.")), "")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _has(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdigit())
