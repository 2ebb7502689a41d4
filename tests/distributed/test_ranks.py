import time

import pytest
import torch
import torch.distributed as dist
from distributed.ranks import RankFailedError, run_ranks

pytestmark = pytest.mark.distributed


def _sum_of_ranks(rank, world_size, offset):
    total = torch.tensor([float(rank + offset)])
    dist.all_reduce(total)
    return total


def _raise_on_one(rank, world_size):
    if rank == 1:
        raise ValueError("rank one says no")


def _hang_on_one(rank, world_size):
    if rank == 1:
        time.sleep(600)


def test_run_ranks_returns_what_each_rank_returned():
    assert [value.item() for value in run_ranks(3, _sum_of_ranks, 10)] == [33.0, 33.0, 33.0]


def test_run_ranks_names_the_rank_that_raised():
    with pytest.raises(RankFailedError, match=r"(?s)rank 1: .*rank one says no"):
        run_ranks(2, _raise_on_one)


def test_run_ranks_kills_a_rank_that_hangs():
    begin = time.monotonic()
    with pytest.raises(RankFailedError, match="rank 1: did not end in time"):
        run_ranks(2, _hang_on_one, timeout=3)
    assert time.monotonic() - begin < 30
