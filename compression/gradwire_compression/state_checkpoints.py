"""States inside checkpoints of `torch.distributed.checkpoint`: one entry for each rank.

Imported only when it is needed: torch's part of it takes half as long to import as all the rest of torch.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader

from gradwire_compression.errors import StateError
from gradwire_compression.state import State
from gradwire_compression.state_bytes import from_bytes, pattern_for


def find_entries(source: Path | StorageReader, model: str) -> dict[int, dict[int, Callable[[], State]]]:
    """Return how to read the entries of a model, by world size and rank."""
    reader = FileSystemReader(source) if isinstance(source, Path) else source
    pattern = re.compile(r"(?:.*\.)?" + pattern_for(model))
    found: dict[int, dict[int, Callable[[], State]]] = {}
    for key, facts in reader.read_metadata().state_dict_metadata.items():
        match = pattern.fullmatch(key)
        if match and isinstance(facts, TensorStorageMetadata):
            read = partial(_read, reader, key, facts.size.numel())
            found.setdefault(int(match[2]), {})[int(match[1])] = read
    return found


def _read(reader: StorageReader, key: str, num_bytes: int) -> State:
    content = bytearray(num_bytes)
    try:
        # Each rank reads what it needs, which with another number of ranks is not the same.
        load({key: torch.frombuffer(content, dtype=torch.uint8)}, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        raise StateError(f"{key} cannot be read from the checkpoint: {error}") from error
    return from_bytes(content, key)
