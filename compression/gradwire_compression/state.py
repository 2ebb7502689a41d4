"""States: what error feedback holds on one rank, as plain values that are checked before anything rests on them."""

import ctypes
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.errors import StateError

# Raised whenever a state of an older version can no longer be read.
FORMAT = 1

State = dict[str, Any]

# (offset in the flat gradient of one parameter, values) by parameter name: what one rank holds as an owner.
Pieces = dict[str, list[tuple[int, Tensor]]]

_FIELDS = (
    "plan",
    "num_syncs",
    "loss_scale",
    "rank",
    "world_size",
    "nodes",
    "buckets",
    "residuals",
    "owner_residuals",
    "warm_starts",
    "powers",
    "permuted",
)


def seal(fields: Mapping[str, Any]) -> State:
    """Return the fields as a state whose damage is found out, wherever it was kept meanwhile."""
    state = {key: value for key, value in fields.items() if key != "checksum"}
    state["format"] = FORMAT
    return {**state, "checksum": _checksum(state)}


def verify(state: Mapping[str, Any]) -> None:
    """Check that a state is whole and of a known format.

    Raises:
        StateError: Says what is wrong with it.
    """
    if not isinstance(state, Mapping) or "checksum" not in state:
        raise StateError("this is no state of an exchange; wanted: what state_dict() returned")
    if state.get("format") != FORMAT:
        raise StateError(f"the state has format {state.get('format')!r}; wanted: {FORMAT}")
    if missing := [name for name in _FIELDS if name not in state]:
        raise StateError(f"the state lacks {', '.join(missing)}")
    if _checksum({key: value for key, value in state.items() if key != "checksum"}) != state["checksum"]:
        raise StateError("the state is damaged: its content does not match its checksum")


def step_of(state: Mapping[str, Any]) -> int:
    """Return the step at which the state was taken, as its maker counts steps."""
    return int(state.get("step", state["num_syncs"]))


def redistribute(states: Sequence[Mapping[str, Any]], rank: int, world_size: int) -> State:
    """Return the state with which `rank` of another number of ranks goes on; the mean debt stays the same.

    Residuals are summed over the old ranks that fall to this one (all with the same remainder modulo `world_size`)
    and scaled by new over old ranks; owners' residuals go to rank 0, from which loading deals them out anew.

    Args:
        states: Of all old ranks, in any order.
        rank: Of this process in the new group.
        world_size: Of the new group.

    Raises:
        StateError: A state is damaged or missing, or they are not of the same step of the same run.
    """
    for state in states:
        verify(state)
    by_rank = {int(state["rank"]): state for state in states}
    first = by_rank[min(by_rank)]
    if missing := [str(old) for old in range(first["world_size"]) if old not in by_rank]:
        raise StateError(f"the states of rank {', '.join(missing)} of {first['world_size']} are missing")
    for old, state in sorted(by_rank.items()):
        check_same(first, state, f"the state of rank {first['rank']}", f"that of rank {old}")
    mine = [by_rank[old]["residuals"] for old in range(rank, first["world_size"], world_size)]
    scale = world_size / first["world_size"]
    residuals = {
        name: scale * torch.stack([held[name] for held in mine if name in held]).sum(dim=0)
        for name in {name: None for held in mine for name in held}
    }
    owned: Pieces = {}
    for _, state in sorted(by_rank.items()) if rank == 0 else ():
        for name, pieces in state["owner_residuals"].items():
            owned.setdefault(name, []).extend(pieces)
    note = f"error feedback of {first['world_size']} ranks was dealt out to {world_size}"
    changed = {
        "rank": rank,
        "world_size": world_size,
        "nodes": [],
        "buckets": [],
        "residuals": residuals,
        "owner_residuals": owned,
        "note": note,
    }
    return seal({**first, **changed})


def check_same(one: Mapping[str, Any], other: Mapping[str, Any], name: str, other_name: str) -> None:
    """Check that two states are of the same step of the same run under the same plan.

    Raises:
        StateError: Names both and what differs.
    """
    facts = [(of.get("run", ""), step_of(of), of["num_syncs"], of["world_size"], of["plan"]) for of in (one, other)]
    for what, left, right in zip(("run", "step", "exchange", "world size", "plan"), *facts, strict=True):
        if left != right:
            raise StateError(f"{name} and {other_name} do not belong together: {what} {left} and {right}")


def _checksum(value: object) -> int:
    checksum = 0
    for chunk in _chunks(value):
        checksum = zlib.crc32(chunk, checksum)
    return checksum


def _chunks(value: object) -> Iterator[bytes | memoryview]:
    """Yield bytes that are equal for equal values; each value begins with its kind and size."""
    if isinstance(value, Tensor):
        yield f"{value.dtype}{tuple(value.shape)}".encode()
        flat = value.detach().cpu().contiguous()
        # Read where it lies: numpy, which could lend its memory too, need not be installed.
        yield memoryview((ctypes.c_char * flat.nbytes).from_address(flat.data_ptr())) if flat.nbytes else b""
    elif isinstance(value, Mapping):
        yield f"mapping{len(value)}".encode()
        for key in sorted(value):
            yield from _chunks(key)
            yield from _chunks(value[key])
    elif isinstance(value, list | tuple):
        yield f"sequence{len(value)}".encode()
        for entry in value:
            yield from _chunks(entry)
    else:
        text = repr(value)
        yield f"{type(value).__name__}{len(text)}:{text}".encode()
