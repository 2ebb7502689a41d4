"""Saved states, found again by each rank of the model's group."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradwire_compression
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader


def save_state(state: Mapping[str, Any], folder: str | Path) -> Path:
    """Write this rank's `session.state_dict()` into a checkpoint's folder; every rank calls it.

    The file is whole or it is not there: a process that is killed meanwhile leaves the one from before.

    Raises:
        gradwire_compression.StateError: This is no state, or it was changed.
        OSError: The file cannot be written.
    """
    return gradwire_compression.save_state(state, folder)


def checkpoint_entry(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return this rank's `session.state_dict()` as an entry for `torch.distributed.checkpoint.save`.

    Raises:
        gradwire_compression.StateError: This is no state, or it was changed.
    """
    return gradwire_compression.checkpoint_entry(state)


def load_state(
    source: "str | Path | StorageReader", *, name: str = "model", group: dist.ProcessGroup | None = None
) -> dict[str, Any] | None:
    """Read this rank's state for `attach(state=...)`; None, with a warning, if nothing was saved there.

    What another number of ranks saved is dealt out to the ranks there are now.

    Args:
        source: Folder in which `save_state` wrote, or a checkpoint of `torch.distributed.checkpoint` that holds
            each rank's `checkpoint_entry`: its folder or a reader.
        name: Under which the model is attached.
        group: The model's own group; None for the default one.

    Raises:
        gradwire_compression.StateError: A state is damaged, missing, or of another step than the others; the text
            names it and says why.
    """
    rank, world_size = dist.get_rank(group), dist.get_world_size(group)
    return gradwire_compression.load_state(source, rank=rank, world_size=world_size, model=name)
