"""A link test as text."""

from gradwire_protocol.records import LinkTest

from gradwire.linktest.slow import explain, name_of
from gradwire.wording import aligned


def table(test: LinkTest) -> str:
    """Return the tables of sizes, fits and pairs, and what is slow."""
    parts = (_sizes(test), _fits(test), _pairs(test))
    lines = [f"Link test of {test.num_ranks} ranks over {test.backend}; MB are 10^6 bytes.", ""]
    for part in parts:
        lines += [*aligned(part), ""]
    return "\n".join([*lines, *(explain(test.pairs) or ("No pair is slow.",))])


def _sizes(test: LinkTest) -> list[tuple[str, ...]]:
    rows = [
        (
            one.name,
            f"{size.num_bytes}",
            f"{1e3 * size.seconds:.4g} ms",
            _rate(size.algbw_bytes_per_second),
            _rate(size.busbw_bytes_per_second),
        )
        for one in test.collectives
        for size in one.sizes
    ]
    return [("COLLECTIVE", "BYTES", "TIME", "ALGBW", "BUSBW"), *rows]


def _fits(test: LinkTest) -> list[tuple[str, ...]]:
    rows = [
        (one.name, f"{1e6 * one.alpha_seconds:.0f} us", _rate(one.beta_bytes_per_second))
        for one in test.collectives
    ]
    return [("FITTED", "ALPHA", "BETA"), *rows]


def _pairs(test: LinkTest) -> list[tuple[str, ...]]:
    rows = [
        (
            name_of(pair.source, pair.source_host),
            name_of(pair.target, pair.target_host),
            f"{1e6 * pair.latency_seconds:.0f} us",
            _rate(pair.bytes_per_second),
        )
        for pair in test.pairs
    ]
    return [("FROM", "TO", "LATENCY", "BANDWIDTH"), *rows]


def _rate(bytes_per_second: float | None) -> str:
    return "unknown" if bytes_per_second is None else f"{bytes_per_second / 1e6:.4g} MB/s"
