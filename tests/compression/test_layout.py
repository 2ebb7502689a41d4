import math

import torch
from gradwire_compression.buckets import pack
from gradwire_compression.collectives.two_phase import MAX_PART_BYTES, divide
from gradwire_compression.layout import Layout
from hypothesis import given
from hypothesis import strategies as st

from tests.compression.samples import NAMES, codec_of

sizes = st.lists(st.integers(0, 3000), min_size=1, max_size=6)


def _slots(numels):
    return pack((str(index), numel) for index, numel in enumerate(numels))


@given(numels=sizes, block=st.integers(64, 1024))
def test_blocks_cover_every_element_once_and_span_no_two_tensors(numels, block):
    slots = _slots(numels)
    layout = Layout.build(slots, block)
    seen = torch.zeros(sum(numels), dtype=torch.int64)
    for offset, length in zip(layout.offsets.tolist(), layout.lengths.tolist(), strict=True):
        assert 0 < length <= block
        seen[offset : offset + length] += 1
        owners = [slot for slot in slots if slot.offset <= offset < slot.offset + slot.numel]
        assert offset + length <= owners[0].offset + owners[0].numel
    assert (seen == 1).all()
    assert layout.numel == sum(numels)


@given(numels=sizes, num_blocks=st.integers(1, 20))
def test_shards_follow_each_other_and_are_filled_up_with_empty_blocks(numels, num_blocks):
    layout = Layout.build(_slots(numels), 64)
    num_shards = -(-layout.num_blocks // num_blocks) + 1
    shards = [layout.shard(index * num_blocks, num_blocks) for index in range(num_shards)]
    assert all(shard.num_blocks == num_blocks for shard in shards)
    assert sum(shard.numel for shard in shards) == layout.numel
    begin = 0
    for shard in shards:
        assert shard.numel == 0 or shard.start == begin
        begin += shard.numel


@given(numels=sizes)
def test_compact_blocks_lie_one_after_the_other(numels):
    compact = Layout.build(_slots([17, *numels])[1:], 64).compact()
    ends = (compact.offsets + compact.lengths).tolist()
    assert [0, *ends[:-1]][: compact.num_blocks] == compact.offsets.tolist()
    assert compact.numel == sum(numels)


@given(num_blocks=st.integers(0, 100_000), world_size=st.integers(2, 64), name=st.sampled_from(NAMES))
def test_parts_hold_all_blocks_and_stay_within_their_size(num_blocks, world_size, name):
    codec = codec_of(name, 256)
    num_parts, shard_blocks = divide(num_blocks, world_size, codec)
    assert num_parts * world_size * shard_blocks >= num_blocks
    assert shard_blocks <= 1 or world_size * codec.wire_bytes(shard_blocks) <= MAX_PART_BYTES
    if num_parts > 1:
        fewer = math.ceil(math.ceil(num_blocks / world_size) / (num_parts - 1))
        assert world_size * codec.wire_bytes(fewer) > MAX_PART_BYTES
