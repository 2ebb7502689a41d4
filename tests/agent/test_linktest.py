"""What a link test computes; links themselves are measured in tests/distributed."""

from collections import Counter

import pytest
from gradwire.linktest.collectives import bus_factor
from gradwire.linktest.pairs import MAX_ALONE, rounds
from gradwire.linktest.slow import explain, slow_pairs
from gradwire_protocol.records import PairFacts


def pair(source: int, target: int, megabytes: float) -> PairFacts:
    return PairFacts(
        source=source,
        target=target,
        source_host=f"host-{source}",
        target_host=f"host-{target}",
        latency_seconds=1e-4,
        bytes_per_second=megabytes * 1e6,
    )


def mesh(num_ranks: int, slow: dict[tuple[int, int], float]) -> list[PairFacts]:
    """All ordered pairs at 100 MB/s, or what `slow` says."""
    ranks = range(num_ranks)
    return [pair(a, b, slow.get((a, b), 100.0)) for a in ranks for b in ranks if a != b]


@pytest.mark.parametrize(
    ("collective", "num_ranks", "factor"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("reduce_scatter", 4, 0.75),
        ("all_gather", 4, 0.75),
        ("all_to_all", 2, 0.5),
    ],
)
def test_bus_factor_is_that_of_nccl_tests(collective: str, num_ranks: int, factor: float) -> None:
    assert bus_factor(collective, num_ranks) == factor


@pytest.mark.parametrize("num_ranks", [2, 3, MAX_ALONE, MAX_ALONE + 1, 16, 17])
def test_every_pair_is_measured_once_and_nobody_twice_at_a_time(num_ranks: int) -> None:
    participants = [10 + rank for rank in range(num_ranks)]
    seen: Counter[tuple[int, int]] = Counter()
    for pairs in rounds(participants):
        busy = [rank for pair in pairs for rank in pair]
        assert len(busy) == len(set(busy))
        seen.update(pairs)
    assert set(seen.values()) == {1}
    assert len(seen) == num_ranks * (num_ranks - 1) // 2
    assert all(first < second for first, second in seen)


def test_slow_pair_is_named_by_rank_and_host() -> None:
    pairs = mesh(4, {(1, 3): 20.0})
    assert slow_pairs(pairs) == (pair(1, 3, 20.0),)
    assert explain(pairs) == ("Slow: rank 1 on host-1 to rank 3 on host-3, 20 MB/s, 20 % of the others' 100 MB/s.",)


def test_rank_that_all_slow_pairs_share_is_named_first() -> None:
    pairs = mesh(4, {(a, b): 10.0 for a in range(4) for b in range(4) if 2 in (a, b)})
    first, *rest = explain(pairs)
    assert first == "All slow pairs have rank 2 on host-2 in common: look at its link first."
    assert len(rest) == 6


def test_two_ranks_are_compared_both_ways() -> None:
    assert slow_pairs(mesh(2, {})) == ()
    assert slow_pairs(mesh(2, {(1, 0): 60.0})) == (pair(1, 0, 60.0),)
    assert explain([]) == ()
