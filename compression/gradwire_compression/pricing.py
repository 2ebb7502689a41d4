"""Pricing: has a plan's buckets compressed only where that is faster, on all ranks alike."""

import json

from gradwire_compression.costs import Costs, Line, Link, Links
from gradwire_compression.prepared import Prepared
from gradwire_compression.probing import measure_link
from gradwire_compression.ranks import Ranks
from gradwire_compression.sampling import sample


class Pricing:
    """Brings the links' figures and the codec's together.

    Args:
        links: As all ranks agreed on them; None has every bucket compressed.
        ranks: Those that agree.
    """

    def __init__(self, links: Links | None, ranks: Ranks) -> None:
        self._links, self._ranks = links, ranks
        self._samples: dict[str, Line] = {}

    def sample(self, prepared: Prepared) -> None:
        """Measure the plan's codec on this rank, once for each choice of its parameters; not collective."""
        plan, codec = prepared.plan, prepared.codec
        if self._links is None or codec is None or plan.every_bucket:
            return
        key = json.dumps([plan.codec, dict(plan.parameters)], sort_keys=True)
        if key not in self._samples:
            self._samples[key] = sample(codec, self._ranks.world_size, self._ranks.device)
        prepared.own_codec_line = self._samples[key]

    def settle(self, prepared: Prepared) -> None:
        """Agree on the codec's figures and give up the buckets that are faster exactly; on all ranks at once."""
        own = prepared.own_codec_line
        if self._links is not None and own is not None:
            prepared.decide_by(Costs(self._links, _agreed(own, self._ranks)))


def measure_links(ranks: Ranks) -> Links:
    """Return how fast the groups are, equal on all ranks, which call this at the same point.

    Args:
        ranks: With a group.

    Cost: that of `measure_link`, three times where there is an exchange in two levels.
    """
    assert ranks.group is not None
    flat = measure_link(ranks.group, ranks.device)
    if ranks.nodes is None:
        return Links(flat)
    # Each node, and each place in a node, measures its own.
    inner, outer = (measure_link(group, ranks.device) for group in (ranks.nodes.inner, ranks.nodes.outer))
    return Links(flat, *(Link(*(_agreed(line, ranks) for line in link.lines)) for link in (inner, outer)))


def _agreed(line: Line, ranks: Ranks) -> Line:
    return Line(ranks.mean(line.fixed_seconds), ranks.mean(line.seconds_per_unit))
