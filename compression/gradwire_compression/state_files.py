"""Files of states: one a rank in a folder of the checkpoint, whole or not there at all."""

import logging
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwire_compression.errors import StateError
from gradwire_compression.state import State, redistribute
from gradwire_compression.state_bytes import from_bytes, model_of, name_for, name_of, pattern_for, to_bytes

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader

_log = logging.getLogger(__name__)

# How to read each rank's state, by world size and rank.
_Found = dict[int, dict[int, Callable[[], State]]]


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
    content = to_bytes(state)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name_of(state)}.pt"
    unfinished = folder / f".{path.name}.unfinished"
    with unfinished.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    _sync_folder(folder)
    for world_size, paths in _files(folder, model_of(state)).items():
        if world_size != state["world_size"]:
            for other in paths.values():
                other.unlink(missing_ok=True)
    return path


def load_state(
    source: "str | Path | StorageReader", *, rank: int, world_size: int, model: str = "model"
) -> State | None:
    """Read the state of `rank`; None, with a warning, if nothing was saved there.

    States of another number of ranks are all read, and what is owed is dealt out to the ranks there are now.

    Args:
        source: Folder in which `save_state` wrote, or a checkpoint of `torch.distributed.checkpoint` with entries
            that `checkpoint_entry` made: its folder or a reader.
        rank: Of this process in the model's group.
        world_size: Of that group.
        model: Name under which the model was attached.

    Raises:
        StateError: A state is damaged, missing, or of another step than the others; the text names it and says why.
    """
    where, found = _find(source, model)
    if not found:
        _log.warning("no state of %s in %s: the residual starts at zero", model, where)
        return None
    if len(found) > 1:
        sizes = " and of ".join(str(size) for size in sorted(found))
        raise StateError(
            f"{where} holds states of {sizes} ranks; remove those that do not belong to this checkpoint"
        )
    saved_size, states = next(iter(found.items()))
    for old in range(saved_size):
        if old not in states:
            name = name_for(model, old, saved_size)
            raise StateError(f"the state {name} is missing in {where}, and the other ranks' are there")
    if saved_size == world_size:
        return states[rank]()
    try:
        return redistribute([states[old]() for old in range(saved_size)], rank, world_size)
    except StateError as error:
        raise StateError(f"{where}: {error}") from error


def _find(source: "str | Path | StorageReader", model: str) -> tuple[str, _Found]:
    if not isinstance(source, str | Path):
        return "the checkpoint", _entries(source, model)
    folder = Path(source)
    found: _Found = {
        world_size: {rank: partial(_read, path) for rank, path in paths.items()}
        for world_size, paths in _files(folder, model).items()
    }
    if not found and (folder / ".metadata").exists():
        found = _entries(folder, model)
    return str(folder), found


def _entries(source: "Path | StorageReader", model: str) -> _Found:
    # Half a second that only those pay who keep states in such checkpoints.
    from gradwire_compression.state_checkpoints import find_entries

    return find_entries(source, model)


def _read(path: Path) -> State:
    return from_bytes(path.read_bytes(), str(path))


def _files(folder: Path, model: str) -> dict[int, dict[int, Path]]:
    """Return the files by world size and rank."""
    pattern = re.compile(pattern_for(model) + r"\.pt")
    found: dict[int, dict[int, Path]] = {}
    for path in folder.glob("gradwire-*.pt"):
        if match := pattern.fullmatch(path.name):
            found.setdefault(int(match[2]), {})[int(match[1])] = path
    return found


def _sync_folder(folder: Path) -> None:
    """Make the new name survive a loss of power, where folders can be synchronised."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
