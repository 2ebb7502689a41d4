"""How fast a group's exchanges are said to be, from exchanges that take a known time."""

from types import SimpleNamespace

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


class Link:
    """Sends nothing; its clock goes on by the seconds that are left in a list, the last of them again and again."""

    def __init__(self, *large_seconds: float) -> None:
        self._left = list(large_seconds)
        self.now = 0.0
        self.num_large = 0

    def exchange(self, num_bytes: int) -> int:
        if num_bytes >= 1 << 20:
            self.num_large += 1
            self.now += self._left.pop(0) if len(self._left) > 1 else self._left[0]
        return num_bytes


@pytest.fixture
def line_of(monkeypatch):
    def line_of(link: Link):
        monkeypatch.setattr(probing, "time", SimpleNamespace(perf_counter=lambda: link.now))
        return probing._line(link.exchange, dist.group.WORLD, CPU)

    return line_of


def test_a_few_slow_milliseconds_are_not_taken_for_the_link(line_of):
    assert line_of(Link(*[0.015] * 4, 0.003)).at(1 << 20) == pytest.approx(0.003, rel=0.01)


def test_a_slow_link_is_not_tried_more_often(line_of):
    link = Link(0.03)
    assert line_of(link).at(1 << 20) == pytest.approx(0.03, rel=0.01)
    assert link.num_large == 1 + 3
