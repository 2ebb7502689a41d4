"""The whole link test of a group."""

import socket
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from gradwire_protocol.records import LinkTest
from msgspec.structs import replace
from torch.distributed import ProcessGroup

from gradwire.linktest.collectives import measure_collectives
from gradwire.linktest.pairs import measure_pairs
from gradwire.membership import place_of

# A run's facts are one record of bounded size.
MAX_PAIRS = 64


def measure(group: ProcessGroup, device: torch.device) -> LinkTest:
    """Test the links of a group; all its ranks call this at the same point, and nothing else is on the wire.

    Pairs are made of the nodes' first ranks, as ranks of a node share its link; on a single node of all its ranks.

    Cost: about three seconds for a few ranks on a fast link, ten at 200 Mbit/s; 128 MiB of buffers.
    """
    hosts, participants = _places(group)
    return LinkTest(
        backend=str(dist.get_backend(group)),
        num_ranks=dist.get_world_size(group),
        collectives=measure_collectives(group, device),
        pairs=measure_pairs(group, participants, device, hosts),
    )


def slowest(test: LinkTest) -> LinkTest:
    """Return the test with as many pairs as a run's facts take, the slowest ones."""
    pairs = sorted(test.pairs, key=lambda pair: pair.bytes_per_second)[:MAX_PAIRS]
    return replace(test, pairs=tuple(sorted(pairs, key=lambda pair: (pair.source, pair.target))))


def _places(group: ProcessGroup) -> tuple[Sequence[str], Sequence[int]]:
    """Return every rank's host, and the ranks whose pairs are measured."""
    host = socket.gethostname()
    mine = (host, *place_of(host))
    everybody: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everybody, mine, group=group)
    nodes = [place[1:] for place in everybody]
    first = sorted({nodes.index(node) for node in nodes})
    return [place[0] for place in everybody], first if len(first) > 1 else range(len(everybody))
