"""Costs: what exchanging a bucket should take exactly and compressed, from figures that all ranks agreed on."""

from dataclasses import dataclass

from gradwire_compression.codecs.base import ScaledCodec
from gradwire_compression.codecs.cast import CastCodec
from gradwire_compression.codecs.powersgd import LowRankCodec
from gradwire_compression.collectives.base import LossyCollective
from gradwire_compression.collectives.exact import exact_wire_bytes
from gradwire_compression.collectives.hierarchical import Hierarchical
from gradwire_compression.collectives.low_rank import LowRank

Codec = ScaledCodec | CastCodec | LowRankCodec

# A codec must save at least this share of the exact time: the figures of one start differ from those of the next by
# a quarter, and a codec that saves nothing costs accuracy for it.
LEAST_SAVING = 0.3

# A codec's seconds count so often: bytes travel beside backward, but a codec works on the cores it needs.
CODEC_WEIGHT = 2


@dataclass(frozen=True)
class Line:
    """Seconds that something takes, as a straight line over its size."""

    fixed_seconds: float
    seconds_per_unit: float

    def at(self, size: float) -> float:
        """Return the seconds for `size` units."""
        return self.fixed_seconds + self.seconds_per_unit * size

    @classmethod
    def through(cls, small: tuple[float, float], large: tuple[float, float]) -> "Line":
        """Return the line through two measured (size, seconds), neither part of it below zero."""
        (small_size, small_seconds), (large_size, large_seconds) = small, large
        slope = max(0.0, (large_seconds - small_seconds) / (large_size - small_size))
        return cls(max(0.0, small_seconds - slope * small_size), slope)


@dataclass(frozen=True)
class Link:
    """One group's exchanges by the bytes that a rank sends."""

    all_reduce: Line
    # An all-to-all followed by an all-gather, by the bytes of both.
    two_phase: Line

    @property
    def lines(self) -> tuple[Line, Line]:
        """Both, in this order."""
        return self.all_reduce, self.two_phase


@dataclass(frozen=True)
class Links:
    """All groups that an exchange may use."""

    flat: Link
    # Inside a node, and between nodes; None where all are as fast as between any ranks.
    inner: Link | None = None
    outer: Link | None = None


@dataclass(frozen=True)
class Costs:
    """The figures that a plan decides by; equal on all ranks, so that all decide alike."""

    links: Links
    # Encoding, averaging as an owner, and decoding, by the elements of a bucket.
    codec: Line


@dataclass(frozen=True)
class Estimate:
    """What one bucket should cost both ways, seconds, each by itself: what backward hides of the wire is left out.

    The codec's own time is in it `CODEC_WEIGHT` times.
    """

    exact_seconds: float
    lossy_seconds: float

    @property
    def is_exact_faster(self) -> bool:
        """Whether compressing the bucket would save nothing worth naming."""
        return self.lossy_seconds > (1 - LEAST_SAVING) * self.exact_seconds


def estimate(
    costs: Costs,
    codec: Codec,
    collective: LossyCollective,
    *,
    num_elements: int,
    num_bytes: int,
    exempt_bytes: int,
    world_size: int,
) -> Estimate:
    """Return what one bucket should take, from nothing that differs between ranks.

    Args:
        costs: What was measured.
        codec: Of the plan.
        collective: Would exchange the compressed tensors.
        num_elements: Of the compressed tensors.
        num_bytes: Of the whole bucket, in the dtype that the model sends.
        exempt_bytes: Of the tensors that travel exactly beside the compressed ones.
        world_size: Ranks.
    """
    exact = costs.links.flat.all_reduce
    # They travel at the same time, on the same wire.
    beside = exact.seconds_per_unit * exact_wire_bytes(exempt_bytes, world_size)
    lossy = _lossy_seconds(costs, codec, collective, num_elements)
    return Estimate(exact.at(exact_wire_bytes(num_bytes, world_size)), lossy + beside)


def _lossy_seconds(costs: Costs, codec: Codec, collective: LossyCollective, num_elements: int) -> float:
    if isinstance(collective, Hierarchical):
        return _seconds_in_two_levels(costs, codec, collective)
    link = costs.links.flat
    if isinstance(collective, LowRank):
        wire = Line(2 * link.all_reduce.fixed_seconds, link.all_reduce.seconds_per_unit)
    else:
        wire = link.all_reduce if isinstance(codec, CastCodec) else link.two_phase
    return wire.at(collective.wire_bytes) + CODEC_WEIGHT * costs.codec.at(num_elements)


def _seconds_in_two_levels(costs: Costs, codec: Codec, collective: Hierarchical) -> float:
    """Return the three hops one after the other, though some of the time inside hides behind that across."""
    links, count = costs.links, collective.num_stages
    inner, outer = links.inner or links.flat, links.outer or links.flat
    assert not isinstance(codec, LowRankCodec)
    # Ranks cut their shards into different blocks, and must all come to the same figure.
    numel = -(-collective.shard_numel // count)
    if isinstance(codec, CastCodec):
        across = outer.all_reduce.at(exact_wire_bytes(codec.wire_bytes(numel), collective.num_nodes))
    else:
        num_blocks = -(-numel // (codec.block * collective.num_nodes))
        across = outer.two_phase.at(2 * (collective.num_nodes - 1) * codec.wire_bytes(num_blocks))
    return inner.two_phase.at(collective.inner_wire_bytes) + count * (across + CODEC_WEIGHT * costs.codec.at(numel))
