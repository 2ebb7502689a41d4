"""Files of states: one a rank in a folder of the checkpoint, whole or not there at all."""

import logging
import os
import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import torch

from gradwire_compression.errors import StateError
from gradwire_compression.state import State, redistribute, verify

_log = logging.getLogger(__name__)

# What a file ends with: a mark and the CRC-32 of everything before. `torch.load` reads the file as it is.
_MARK = b"gradwire"
_TAIL_BYTES = len(_MARK) + 4


def save_state(state: Mapping[str, Any], folder: str | Path) -> Path:
    """Write one rank's state into `folder`, which is made if it is not there; every rank calls this.

    A process that is killed meanwhile leaves the file of the time before. Files that other numbers of ranks left in
    the folder are removed.

    Args:
        state: What `state_dict()` returned.
        folder: Of the checkpoint, the same on all ranks or one for each rank.

    Returns:
        The file's path.

    Raises:
        StateError: This is no state, or it was changed.
        OSError: The file cannot be written; the one from before is untouched.
    """
    verify(state)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    buffer = BytesIO()
    torch.save(dict(state), buffer)
    content = buffer.getbuffer()
    path = folder / _name(_model_of(state), state["rank"], state["world_size"])
    unfinished = folder / f".{path.name}.unfinished"
    with unfinished.open("wb") as file:
        file.write(content)
        file.write(_MARK + zlib.crc32(content).to_bytes(4, "big"))
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync_folder(folder)
    for world_size, paths in _files(folder, _model_of(state)).items():
        if world_size != state["world_size"]:
            for other in paths.values():
                other.unlink(missing_ok=True)
    return path


def load_state(folder: str | Path, *, rank: int, world_size: int, model: str = "model") -> State | None:
    """Read the state of `rank` from `folder`; None, with a warning, if nothing was saved there.

    Files of another number of ranks are all read, and what is owed is dealt out to the ranks there are now.

    Args:
        folder: Where `save_state` wrote.
        rank: Of this process in the model's group.
        world_size: Of that group.
        model: Name under which the model was attached.

    Raises:
        StateError: A file is damaged, missing, or of another step than the others; the text names it and says why.
    """
    folder = Path(folder)
    found = _files(folder, model)
    if not found:
        _log.warning("no state of %s in %s: the residual starts at zero", model, folder)
        return None
    if len(found) > 1:
        sizes = " and of ".join(str(size) for size in sorted(found))
        raise StateError(
            f"{folder} holds states of {sizes} ranks; remove those that do not belong to this checkpoint"
        )
    saved_size, paths = next(iter(found.items()))
    for old in range(saved_size):
        if old not in paths:
            raise StateError(f"{folder / _name(model, old, saved_size)} is missing, and the other ranks' are there")
    if saved_size == world_size:
        return _read(paths[rank])
    try:
        return redistribute([_read(paths[old]) for old in range(saved_size)], rank, world_size)
    except StateError as error:
        raise StateError(f"{folder}: {error}") from error


def _read(path: Path) -> State:
    """Return the state in a file, checked before anything in it is unpacked."""
    content = path.read_bytes()
    body, tail = content[:-_TAIL_BYTES], content[-_TAIL_BYTES:]
    if not tail.startswith(_MARK) or len(tail) < _TAIL_BYTES:
        raise StateError(f"{path} is not whole: {len(content)} bytes without the mark that ends a state")
    if zlib.crc32(body) != int.from_bytes(tail[len(_MARK) :], "big"):
        raise StateError(f"{path} is damaged: its content does not match its checksum")
    state: State = torch.load(BytesIO(body), map_location="cpu", weights_only=True)
    try:
        verify(state)
    except StateError as error:
        raise StateError(f"{path}: {error}") from error
    return state


def _name(model: str, rank: int, world_size: int) -> str:
    # Names of models are the user's; a path must not be.
    safe = re.sub(r"[^A-Za-z0-9_-]", lambda match: f"%{ord(match.group()):x}%", model)
    return f"gradwire-{safe}-rank{rank}of{world_size}.pt"


def _files(folder: Path, model: str) -> dict[int, dict[int, Path]]:
    """Return the files by world size and rank."""
    pattern = re.compile(re.escape(_name(model, 0, 0)).replace("rank0of0", r"rank(\d+)of(\d+)"))
    found: dict[int, dict[int, Path]] = {}
    for path in folder.glob("gradwire-*.pt"):
        if match := pattern.fullmatch(path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    return found


def _model_of(state: Mapping[str, Any]) -> str:
    return str(state.get("model", "model"))


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a loss of power, where folders can be synchronised."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
