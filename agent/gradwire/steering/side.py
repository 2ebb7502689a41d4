"""The side: small collectives of all ranks apart from their gradients, direct or through nodes' first ranks.

Up to `MAX_DIRECT_RANKS` every rank is connected with every other. Above, ranks are connected with their node's and
first ranks with each other: 1,000 ranks on nodes of 8 then hold 7 to 131 connections each instead of 999.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

MAX_DIRECT_RANKS = 64

Op = dist.ReduceOp.RedOpType
MIN, MAX, SUM = dist.ReduceOp.MIN, dist.ReduceOp.MAX, dist.ReduceOp.SUM


class Circle(Protocol):
    """Ranks that are all connected; every method is called by all of them, and changes CPU tensors in place."""

    def reduce(self, tensor: Tensor, op: Op) -> None:
        """Leave the result on the first rank; what the others hold afterwards means nothing."""
        ...

    def all_reduce(self, tensor: Tensor, op: Op) -> None:
        """Leave the result on all ranks."""
        ...

    def broadcast(self, tensor: Tensor) -> None:
        """Leave the first rank's values on all ranks."""
        ...


class Pending(Protocol):
    """A collective under way."""

    def wait(self) -> object:
        """Wait for its end.

        Raises:
            RuntimeError: A rank is gone, or the group's time-out ran out.
        """
        ...


class Side(Protocol):
    """Collectives of all ranks of the model on CPU tensors, one at a time; called by all of them."""

    rank: int
    world_size: int

    def start_min(self, tensor: Tensor) -> Pending:
        """Begin to take the minimum over ranks, in place; `tensor` is read again after `wait`."""
        ...

    def all_reduce(self, tensor: Tensor, op: Op) -> None:
        """Reduce over ranks in place."""
        ...

    def broadcast(self, tensor: Tensor) -> None:
        """Take rank 0's values."""
        ...

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Return every rank's one-dimensional tensor of the same size, by rank."""
        ...


class GlooCircle:
    """A gloo group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._first = dist.get_global_rank(group, 0)

    def reduce(self, tensor: Tensor, op: Op) -> None:
        """See `Circle.reduce`."""
        dist.reduce(tensor, dst=self._first, op=op, group=self.group)

    def all_reduce(self, tensor: Tensor, op: Op) -> None:
        """See `Circle.all_reduce`."""
        dist.all_reduce(tensor, op=op, group=self.group)

    def broadcast(self, tensor: Tensor) -> None:
        """See `Circle.broadcast`."""
        dist.broadcast(tensor, src=self._first, group=self.group)


class DirectSide:
    """All ranks in one gloo group."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._circle = GlooCircle(group)
        self._group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)

    def start_min(self, tensor: Tensor) -> Pending:
        """See `Side.start_min`."""
        work: dist.Work = dist.all_reduce(tensor, op=MIN, group=self._group, async_op=True)
        return work

    def all_reduce(self, tensor: Tensor, op: Op) -> None:
        """See `Side.all_reduce`."""
        self._circle.all_reduce(tensor, op)

    def broadcast(self, tensor: Tensor) -> None:
        """See `Side.broadcast`."""
        self._circle.broadcast(tensor)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Side.gather`."""
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(gathered, tensor, group=self._group)
        return gathered


class NodeSide:
    """Ranks speak with the first rank of their node, and first ranks with each other.

    Args:
        rank: Of the model's group.
        world_size: Of the model's group.
        node: The ranks of this rank's node.
        leaders: The first ranks of all nodes, rank 0 first; None on other ranks.
    """

    def __init__(self, rank: int, world_size: int, node: Circle, leaders: Circle | None) -> None:
        self.rank, self.world_size = rank, world_size
        self._node = node
        self._leaders = leaders
        self._worker: _Worker | None = None

    def start_min(self, tensor: Tensor) -> Pending:
        """See `Side.start_min`."""
        if self._worker is None:
            self._worker = _Worker()
        return self._worker.start(lambda: self.all_reduce(tensor, MIN))

    def all_reduce(self, tensor: Tensor, op: Op) -> None:
        """See `Side.all_reduce`."""
        self._node.reduce(tensor, op)
        if self._leaders is not None:
            self._leaders.all_reduce(tensor, op)
        self._node.broadcast(tensor)

    def broadcast(self, tensor: Tensor) -> None:
        """See `Side.broadcast`."""
        if self._leaders is not None:
            self._leaders.broadcast(tensor)
        self._node.broadcast(tensor)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """See `Side.gather`. Cost: as many bytes as all ranks' tensors, three times."""
        rows = torch.zeros(self.world_size, *tensor.shape, dtype=tensor.dtype)
        rows[self.rank] = tensor
        self.all_reduce(rows, SUM)
        return list(rows)


class _Task:
    """One call on the worker's thread."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._done = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._call()
        except Exception as error:
            self._error = error
        self._done.set()

    def wait(self) -> None:
        self._done.wait()
        if self._error is not None:
            raise RuntimeError(f"{self._error}") from self._error


class _Worker:
    """A thread that makes one call after another, since three collectives in a row are none that gloo can start."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="gradwire-side", daemon=True).start()

    def start(self, call: Callable[[], None]) -> _Task:
        task = _Task(call)
        self._tasks.put(task)
        return task

    def _run(self) -> None:
        while True:
            self._tasks.get().run()


def speaks_through_nodes(world_size: int, nodes: Sequence[Sequence[int]]) -> bool:
    """Return whether ranks are too many to be connected with each other, and nodes make them fewer."""
    return world_size > MAX_DIRECT_RANKS and 1 < len(nodes) < world_size
