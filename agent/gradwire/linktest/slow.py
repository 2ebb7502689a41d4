"""Which pairs are slow, and whether they have a host in common."""

from collections.abc import Sequence
from statistics import median

from gradwire_protocol.records import PairFacts

# A pair below this part of the median is slow: less differs between equal links.
SLOW_SHARE = 0.7


def slow_pairs(pairs: Sequence[PairFacts]) -> tuple[PairFacts, ...]:
    """Return the pairs whose bandwidth is below `SLOW_SHARE` of the median, slowest first.

    Bandwidths among less than three participants are compared both ways only: the slower way is slow if it is below
    that share of the faster one.
    """
    if not pairs:
        return ()
    rates = [pair.bytes_per_second for pair in pairs]
    usual = median(rates) if len(rates) > 2 else max(rates)
    slow = [pair for pair in pairs if pair.bytes_per_second < SLOW_SHARE * usual]
    return tuple(sorted(slow, key=lambda pair: pair.bytes_per_second))


def name_of(rank: int, host: str) -> str:
    """Return a rank with its host."""
    return f"rank {rank} on {host}"


def explain(pairs: Sequence[PairFacts]) -> tuple[str, ...]:
    """Return sentences that name the slow pairs, or the one rank that all of them have in common."""
    slow = slow_pairs(pairs)
    if not slow:
        return ()
    usual = median(pair.bytes_per_second for pair in pairs if pair not in slow)
    common = set.intersection(*({pair.source, pair.target} for pair in slow))
    sentences = []
    if len(common) == 1 and len(slow) > 1:
        (rank,) = common
        host = next(p.source_host if p.source == rank else p.target_host for p in slow)
        sentences.append(f"All slow pairs have {name_of(rank, host)} in common: look at its link first.")
    for pair in slow:
        ways = f"{name_of(pair.source, pair.source_host)} to {name_of(pair.target, pair.target_host)}"
        share = f"{100 * pair.bytes_per_second / usual:.0f} % of the others' {usual / 1e6:.4g} MB/s"
        sentences.append(f"Slow: {ways}, {pair.bytes_per_second / 1e6:.4g} MB/s, {share}.")
    return tuple(sentences)
