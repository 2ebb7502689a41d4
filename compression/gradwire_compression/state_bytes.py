"""States as bytes whose damage is found out before they are unpacked, and the names they are kept under."""

import re
import zlib
from collections.abc import Mapping
from io import BytesIO
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.errors import StateError
from gradwire_compression.state import State, verify

# What the bytes end with: a mark and the CRC-32 of everything before. `torch.load` reads them as they are.
_MARK = b"gradwire"
_TAIL_BYTES = len(_MARK) + 4


def to_bytes(state: Mapping[str, Any]) -> bytearray:
    """Return a state as bytes.

    Raises:
        StateError: This is no state, or it was changed.
    """
    verify(state)
    buffer = BytesIO()
    torch.save(dict(state), buffer)
    checksum = zlib.crc32(buffer.getbuffer())
    buffer.write(_MARK + checksum.to_bytes(4, "big"))
    return bytearray(buffer.getbuffer())


def from_bytes(content: bytes | bytearray, name: str) -> State:
    """Return the state in what was kept as `name`.

    Raises:
        StateError: It is damaged; the text begins with the name.
    """
    body, tail = content[:-_TAIL_BYTES], content[-_TAIL_BYTES:]
    if not tail.startswith(_MARK) or len(tail) < _TAIL_BYTES:
        raise StateError(f"{name} is not whole: {len(content)} bytes without the mark that ends a state")
    if zlib.crc32(body) != int.from_bytes(tail[len(_MARK) :], "big"):
        raise StateError(f"{name} is damaged: its content does not match its checksum")
    state: State = torch.load(BytesIO(body), map_location="cpu", weights_only=True)
    try:
        verify(state)
    except StateError as error:
        raise StateError(f"{name}: {error}") from error
    return state


def checkpoint_entry(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a rank's state as an entry of what `torch.distributed.checkpoint.save` is given.

    Plain tensors under equal names would be taken for copies of each other, and only one rank's kept; so the entry
    is one tensor of bytes under a name of this rank's own. `load_state` finds it, however deep it was nested.

    Raises:
        StateError: This is no state, or it was changed.
    """
    return {name_of(state): torch.frombuffer(to_bytes(state), dtype=torch.uint8)}


def name_of(state: Mapping[str, Any]) -> str:
    """Return the name under which one rank's state of one model is kept."""
    return name_for(model_of(state), state["rank"], state["world_size"])


def name_for(model: str, rank: int, world_size: int) -> str:
    """Return the name for a rank of a model."""
    # Names of models are the user's; a path must not be.
    safe = re.sub(r"[^A-Za-z0-9_-]", lambda match: f"%{ord(match.group()):x}%", model)
    return f"gradwire-{safe}-rank{rank}of{world_size}"


def pattern_for(model: str) -> str:
    """Return a regular expression for names of a model, with the rank and the world size as groups."""
    return re.escape(name_for(model, 0, 0)).replace("rank0of0", r"rank(\d+)of(\d+)")


def model_of(state: Mapping[str, Any]) -> str:
    """Return the name under which the state's model was attached."""
    return str(state.get("model", "model"))
