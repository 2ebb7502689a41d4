"""What the command tells the ranks of a trial's arm, and what they tell it back: files in the arm's folder."""

import os
from pathlib import Path

import msgspec
from gradwire_protocol.plans import PlanSpec
from msgspec import Struct

# Names the arm's folder to the processes of its training.
ENVIRONMENT = "GRADWIRE_TRIAL"

_ORDER_FILE = "order.json"


class Order(Struct, frozen=True, kw_only=True):
    """What the ranks of one arm shall do."""

    run: str
    run_name: str
    plan: PlanSpec
    num_steps: int
    seed: int


class RankResult(Struct, frozen=True, kw_only=True):
    """What one rank did."""

    rank: int
    world_size: int
    device: str
    # Of the parameters and buffers that the first step began with.
    checksum: str
    # The step that training began after: 0, or what a checkpoint had done.
    start_step: int
    # Times from the end of one step to the end of the next; one fewer than steps done.
    step_seconds: tuple[float, ...]
    # By step; NaN where the script named none.
    losses: tuple[float, ...]
    # Whether the training was ended after its number of steps; otherwise it ended by itself.
    is_cut: bool


def write_order(folder: Path, order: Order) -> None:
    """Write the order into the arm's folder."""
    (folder / _ORDER_FILE).write_bytes(msgspec.json.encode(order))


def read_order(folder: Path) -> Order:
    """Return the order that the arm's folder holds."""
    return msgspec.json.decode((folder / _ORDER_FILE).read_bytes(), type=Order)


def write_result(folder: Path, result: RankResult) -> None:
    """Write what a rank did, whole or not at all; as msgpack, since JSON knows no NaN."""
    draft = folder / f"rank-{result.rank}.new"
    draft.write_bytes(msgspec.msgpack.encode(result))
    draft.replace(folder / f"rank-{result.rank}.result")


def read_results(folder: Path) -> list[RankResult]:
    """Return what the ranks did, by rank."""
    found = [msgspec.msgpack.decode(path.read_bytes(), type=RankResult) for path in folder.glob("rank-*.result")]
    return sorted(found, key=lambda result: result.rank)


def folder_of_environment() -> Path | None:
    """Return the folder of the arm that this process belongs to; None outside a trial."""
    folder = os.environ.get(ENVIRONMENT)
    return Path(folder) if folder else None
