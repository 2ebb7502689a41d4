"""What ranks check together before any of them goes on from its state."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradwire_compression.buckets import BucketShape, pack
from gradwire_compression.collectives.nodes import Nodes
from gradwire_compression.collectives.power import Powers
from gradwire_compression.errors import StateError
from gradwire_compression.hashing import hash_json
from gradwire_compression.memory_order import is_permuted, memory_order
from gradwire_compression.ranks import Ranks
from gradwire_compression.state import step_of, verify

# What each rank tells the others of its state, in this order.
_FACTS = ("is_good", "saved_rank", "saved_world_size", "step", "num_syncs", "run", "plan", "buckets")


def check_together(
    state: Mapping[str, Any] | None,
    parameters: Mapping[str, Tensor],
    ranks: Ranks,
    total: Callable[[Tensor], object],
) -> None:
    """Check this rank's state, and that all ranks' states were saved together; every rank must call this.

    Args:
        state: None if this rank has none.
        parameters: Of the model, by name.
        ranks: This rank's place.
        total: A blocking sum over ranks in place.

    Raises:
        StateError: On every rank, if any of them cannot go on.
    """
    problem: StateError | None = None
    facts = dict.fromkeys(_FACTS, 0)
    try:
        facts.update(_check(state, parameters, ranks.world_size))
    except StateError as error:
        problem = error
    table = torch.zeros(ranks.world_size, len(_FACTS), dtype=torch.int64, device=_device(parameters))
    table[ranks.rank] = torch.tensor(list(facts.values()))
    total(table)
    if problem is not None:
        raise problem
    _compare([dict(zip(_FACTS, row, strict=True)) for row in table.tolist()], ranks.world_size)


def _check(state: Mapping[str, Any] | None, parameters: Mapping[str, Tensor], world_size: int) -> dict[str, int]:
    """Return this rank's facts."""
    if state is None:
        raise StateError("this rank has no state, while others load theirs")
    verify(state)
    for name, tensor in state["residuals"].items():
        parameter = parameters.get(name)
        if parameter is None or parameter.shape != tensor.shape:
            wanted = "no such parameter" if parameter is None else f"shape {list(parameter.shape)}"
            raise StateError(f"the residual of {name} has shape {list(tensor.shape)}; wanted: {wanted}")
    for name in {**state["owner_residuals"], **state["warm_starts"]}:
        if name not in parameters:
            raise StateError(f"the state knows a parameter {name}; wanted: no such parameter")
        now = memory_order(parameters[name]) if is_permuted(parameters[name]) else None
        if (saved := state["permuted"].get(name)) != now:
            raise StateError(f"{name} lies in memory in the order {now} of its dimensions; the state's was {saved}")
    if state["world_size"] != world_size:
        raise StateError(
            f"the state is one of {state['world_size']} ranks, and there are {world_size} now: "
            "pass the states of all ranks to redistribute first"
        )
    return {
        "is_good": 1,
        "saved_rank": state["rank"],
        "saved_world_size": state["world_size"],
        "step": step_of(state),
        "num_syncs": state["num_syncs"],
        "run": hash_json(state.get("run", "")),
        "plan": hash_json(state["plan"]),
        "buckets": hash_json(state["buckets"]),
    }


def _compare(table: list[dict[str, int]], world_size: int) -> None:
    for rank, facts in enumerate(table):
        if not facts["is_good"]:
            raise StateError(f"rank {rank} cannot go on from its state; its own error says why")
        if facts["saved_rank"] != rank:
            raise StateError(f"rank {rank} loads the state that rank {facts['saved_rank']} saved")
        for name in ("run", "step", "num_syncs", "plan", "buckets"):
            if facts[name] != table[0][name]:
                seen = f" ({facts[name]} and {table[0][name]})" if name in ("step", "num_syncs") else ""
                raise StateError(
                    f"the states of rank {rank} and rank 0 do not belong together: another {name}{seen}"
                )


def buckets_of(state: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> list[BucketShape]:
    """Return the buckets of the step before the state was saved; none if the model's are others now."""
    shapes = []
    for index, dtype, slots in state["buckets"]:
        if any(name not in parameters or str(parameters[name].dtype) != dtype for name, _ in slots):
            return []
        shapes.append(BucketShape(index, parameters[slots[0][0]].dtype, pack(map(tuple, slots))))
    return shapes


def powers_of(state: Mapping[str, Any], nodes: Nodes) -> Powers:
    """Return the exponents that were agreed on; none on other nodes, where other ranks have to agree."""
    if [*map(tuple, state["nodes"])] != [*nodes]:
        return {}
    return {tuple(names): torch.tensor([power], dtype=torch.int32) for names, power in state["powers"]}


def _device(parameters: Mapping[str, Tensor]) -> torch.device:
    return next(iter(parameters.values())).device
