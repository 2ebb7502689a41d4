"""The block table of a bucket: which elements share a scale."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gradwire_compression.buckets import Slot


@dataclass(frozen=True)
class Table:
    """A layout as kernels on a device read it."""

    # [3, num_blocks] int32, or int64 where a tensor has 2**31 elements: offsets, places in compact order, lengths.
    numbers: Tensor
    # All of them are multiples of 4 elements, so that kernels may load 16 bytes at once.
    is_aligned: bool

    @property
    def num_blocks(self) -> int:
        """Blocks, empty ones included."""
        return self.numbers.shape[1]


@dataclass(frozen=True)
class Layout:
    """Blocks of a flat tensor; no block spans two tensors, and exempt tensors are in none.

    The blocks laid one after the other are the compact order, in which residuals are kept.
    """

    # [num_blocks] int64 on CPU, contiguous: where each block begins in the flat tensor, elements.
    offsets: Tensor
    # [num_blocks] int64 on CPU, contiguous: 0 (an empty block, padding) to `block` elements.
    lengths: Tensor
    # Elements of a full block.
    block: int
    # Where the first block begins in the compact order of the whole bucket, elements.
    start: int
    # Elements of all blocks together.
    numel: int

    @classmethod
    def build(cls, slots: Sequence[Slot], block: int) -> "Layout":
        """Cut each slot into blocks of `block` elements, the last one shorter."""
        offsets, lengths = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
        for slot in slots:
            begins = torch.arange(0, slot.numel, block)
            offsets.append(slot.offset + begins)
            lengths.append((slot.numel - begins).clamp(max=block))
        return cls(torch.cat(offsets), torch.cat(lengths), block, 0, sum(slot.numel for slot in slots))

    @property
    def num_blocks(self) -> int:
        """Blocks, empty ones included."""
        return self.offsets.numel()

    def shard(self, first: int, num_blocks: int) -> "Layout":
        """Return the blocks from `first` on, filled up with empty ones to exactly `num_blocks`."""
        offsets = torch.zeros(num_blocks, dtype=torch.int64)
        lengths = torch.zeros(num_blocks, dtype=torch.int64)
        taken = self.lengths[first : first + num_blocks]
        offsets[: taken.numel()] = self.offsets[first : first + num_blocks]
        lengths[: taken.numel()] = taken
        start = self.start + int(self.lengths[:first].sum())
        return Layout(offsets, lengths, self.block, start, int(taken.sum()))

    def deal(self, first: int, num_blocks: int, num_shards: int) -> "Shards":
        """Return shards of `num_blocks` blocks each, one after the other from block `first` on."""
        each = [self.shard(first + index * num_blocks, num_blocks) for index in range(num_shards)]
        return Shards(self.shard(first, num_shards * num_blocks), tuple(each))

    def compact(self) -> "Layout":
        """Return the same blocks as they lie in a compact vector of their own."""
        return self._compact

    def place(self, device: torch.device) -> None:
        """Make the tables that kernels on `device` read, before a step needs them: copying them waits."""
        if device.type == "cuda":
            self.table(device)
            self.compact().table(device)

    def table(self, device: torch.device) -> Table:
        """Return the blocks as one table on `device`; made by the first call, which copies, and kept."""
        if device not in self._tables:
            numbers = torch.stack([self.offsets, self.compact().offsets, self.lengths])
            is_aligned = bool((numbers % 4 == 0).all())
            is_small = self.num_blocks == 0 or int(numbers[:2].max()) + self.block < 2**31
            dtype = torch.int32 if is_small else torch.int64
            self._tables[device] = Table(numbers.to(dtype).to(device), is_aligned)
        return self._tables[device]

    @cached_property
    def _compact(self) -> "Layout":
        return Layout(self.lengths.cumsum(0) - self.lengths, self.lengths, self.block, 0, self.numel)

    @cached_property
    def _tables(self) -> dict[torch.device, Table]:
        return {}


@dataclass(frozen=True)
class Shards:
    """A range of blocks as a whole, and dealt out to ranks in equal numbers."""

    whole: Layout
    each: tuple[Layout, ...]

    def of(self, residual: Tensor) -> Tensor:
        """Return the range's part of a vector in the compact order of the whole bucket."""
        return residual[self.whole.start : self.whole.start + self.whole.numel]
