"""Where things lie: one folder per stream below the spool folder, and the node's socket.

    <spool folder>/<run id>/<digest of attempt, model and node>/
        stream.json         whose it is, and where its socket is
        lock                held by the process that appends or delivers
        0000000000000001.segment ...
        socket              the node's Unix socket, where the path is short enough for one

Names of people's choosing never become part of a path.
"""

import contextlib
import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

import msgspec
from gradwire_protocol.coding import encode
from gradwire_protocol.identity import validate_id
from gradwire_protocol.records import AttemptStarted
from msgspec import Struct
from msgspec.structs import replace

from gradwire.errors import SpoolError

STREAM_FILE = "stream.json"

# sockaddr_un holds 108 bytes with the closing zero on Linux, 104 on BSD and macOS.
_MAX_SOCKET_PATH_BYTES = 103


class StreamFacts(Struct, frozen=True, kw_only=True):
    """Whose records a spool folder holds, and how to reach the process that writes them."""

    run: str
    attempt: str
    model: str
    node: int
    started: AttemptStarted
    server: str | None = None
    host: str = ""
    process: int = 0
    socket: str = ""


def stream_folder(root: Path, run: str, attempt: str, model: str, node: int) -> Path:
    """Return the folder of a stream below the spool folder `root`.

    Raises:
        MalformedError: `run` or `attempt` is not a UUID.
    """
    run = validate_id(run, field="run")
    attempt = validate_id(attempt, field="attempt")
    return root / run / _digest(attempt, model, str(node))


def default_root() -> Path:
    """Return the spool folder where nobody names another: GRADWIRE_SPOOL, else one in the home folder."""
    return Path(os.environ.get("GRADWIRE_SPOOL") or "~/.gradwire/spool").expanduser()


def known_roots() -> list[Path]:
    """Return every spool folder that reporters of this user may have chosen: the default and the temporary one."""
    return [default_root(), *temporary_spools()]


def temporary_spools() -> list[Path]:
    """Return the spool folder in the temporary folder, or nothing where that cannot be this user's alone."""
    try:
        return [temporary_root() / "spool"]
    except SpoolError:
        return []


def socket_paths(folder: Path) -> tuple[Path, ...]:
    """Return where the socket of a stream may be, best first: in its folder, or short and in the temporary folder.

    The second is for folders whose path is too long for a socket, and for file systems that hold none.
    """
    paths = [folder / "socket"]
    with contextlib.suppress(SpoolError):
        paths.append(temporary_root() / f"{_digest(str(folder.resolve()))}.socket")
    return tuple(path for path in paths if len(os.fsencode(path)) <= _MAX_SOCKET_PATH_BYTES)


def temporary_root() -> Path:
    """Return this user's own folder below the temporary one, made if needed.

    Raises:
        SpoolError: Somebody else made it, or others may write to it.
    """
    root = Path(tempfile.gettempdir()) / f"gradwire-{os.getuid()}"
    try:
        root.mkdir(mode=0o700, exist_ok=True)
        status = root.lstat()
    except OSError as error:
        raise SpoolError(f"the folder {root} cannot be made: {error.strerror or error}") from error
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SpoolError(f"the folder {root} is not this user's alone; remove it or set TMPDIR to another folder")
    return root


def write_facts(folder: Path, facts: StreamFacts, socket_path: Path | None) -> None:
    """Write the stream's facts with this host, this process and its socket, whole or not at all.

    Raises:
        SpoolError: The folder does not take the file.
    """
    target = folder / STREAM_FILE
    draft = folder / f"{STREAM_FILE}.new"
    try:
        facts = replace(
            facts, host=socket.gethostname(), process=os.getpid(), socket=str(socket_path) if socket_path else ""
        )
        draft.write_bytes(encode(facts))
        draft.replace(target)
    except OSError as error:
        raise SpoolError(f"the spool folder {folder} cannot be written: {error.strerror or error}") from error


def read_facts(folder: Path) -> StreamFacts | None:
    """Return the stream's facts; None if the folder is not a stream's, or not readable."""
    try:
        return msgspec.json.decode((folder / STREAM_FILE).read_bytes(), type=StreamFacts)
    except (OSError, msgspec.DecodeError):
        return None


def find_streams(root: Path) -> list[tuple[Path, StreamFacts]]:
    """Return every stream below `root`, or in `root` itself, by path."""
    found = []
    for path in sorted(root.rglob(STREAM_FILE)):
        facts = read_facts(path.parent)
        if facts is not None:
            found.append((path.parent, facts))
    return found


def remove_run_folder(folder: Path) -> None:
    """Remove the run's folder that held the stream `folder`, if no other stream is left in it."""
    with contextlib.suppress(OSError):
        folder.parent.rmdir()


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
