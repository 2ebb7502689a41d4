"""Who this process is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Member:
    """Who this process is among the ranks of the model."""

    rank: int
    world_size: int
    host: str
