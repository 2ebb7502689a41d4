"""How fast a group's exchanges are said to be, from exchanges that take a known time."""

import time

import pytest
import torch
import torch.distributed as dist
from gradwire_compression import probing

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def group(tmp_path):
    """Ranks agree on their times, here one with itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Exchange:
    """Sends nothing and takes the seconds that are left in a list, the last of them again and again."""

    def __init__(self, *large_seconds: float) -> None:
        self._left = list(large_seconds)
        self.num_large = 0

    def __call__(self, num_bytes: int) -> int:
        if num_bytes >= 1 << 20:
            self.num_large += 1
            time.sleep(self._left.pop(0) if len(self._left) > 1 else self._left[0])
        return num_bytes


def test_a_few_slow_milliseconds_are_not_taken_for_the_link():
    exchange = Exchange(*[0.015] * 4, 0.003)
    line = probing._line(exchange, dist.group.WORLD, CPU)
    assert 0.003 <= line.at(1 << 20) < 0.014


def test_a_slow_link_is_not_tried_more_often():
    exchange = Exchange(0.03)
    line = probing._line(exchange, dist.group.WORLD, CPU)
    assert line.at(1 << 20) >= 0.03
    assert exchange.num_large == 1 + 3
