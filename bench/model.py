"""What an average of one vector should cost any number of ranks, in bytes and seconds."""

from dataclasses import dataclass

NONE = "none"
TWO_PHASE = "two-phase"
ALL_GATHER = "all-gather"


@dataclass(frozen=True)
class Link:
    """What was measured between two ranks."""

    bytes_per_second: float
    # One message from rank to rank.
    latency_seconds: float


@dataclass(frozen=True)
class CodecCost:
    """One codec at one vector: seconds of a core for all of it, as two ranks saw it on the way."""

    encode_seconds: float
    # To decode one payload.
    decode_seconds: float

    @classmethod
    def of_two_phase(cls, encode_seconds: float, decode_seconds: float) -> "CodecCost":
        """Take the owner's part out of what two ranks took to decode: as much again, and half an encode."""
        return cls(encode_seconds, max(0.0, decode_seconds - encode_seconds / 2) / 2)

    def times(self, factor: float) -> "CodecCost":
        """Return the cost on slower cores."""
        return CodecCost(self.encode_seconds * factor, self.decode_seconds * factor)


@dataclass(frozen=True)
class TwoPhaseSize:
    """How a two-phase exchange of one vector is cut."""

    num_parts: int
    # Payload of one shard, of which there are parts x ranks.
    shard_bytes: int


def exact_bytes(num_bytes: int, world_size: int) -> float:
    """Return what a rank sends in a ring all-reduce."""
    return 2 * (world_size - 1) / world_size * num_bytes


def two_phase_bytes(size: TwoPhaseSize, world_size: int) -> int:
    """Return what a rank sends in a two-phase exchange: it hardly grows with the number of ranks."""
    return 2 * (world_size - 1) * size.num_parts * size.shard_bytes


def all_gather_bytes(payload_bytes: int, world_size: int) -> int:
    """Return what a rank passes on when every rank's payload goes to all: it grows with the number of ranks."""
    return (world_size - 1) * payload_bytes


def exact_seconds(link: Link, num_bytes: int, world_size: int) -> float:
    """Return the time of a ring all-reduce."""
    steps = 2 * (world_size - 1)
    return exact_bytes(num_bytes, world_size) / link.bytes_per_second + steps * link.latency_seconds


def two_phase_seconds(link: Link, codec: CodecCost, size: TwoPhaseSize, world_size: int) -> float:
    """Return the time of a two-phase exchange in parts.

    A part is encoded while the ones before it travel, and so is the owner's work; what no overlap hides is the
    first part's encoding, the last part's owner work and the final decoding.

    Args:
        link: Of each rank.
        codec: Seconds of a whole core.
        size: How the vector is cut.
        world_size: Ranks.
    """
    encode, decode = codec.encode_seconds, codec.decode_seconds
    # An owner decodes every rank's payload of a W-th of the vector, and encodes the mean.
    own = decode + encode / world_size
    messages = 2 * (world_size - 1) * size.num_parts
    wire = two_phase_bytes(size, world_size) / link.bytes_per_second
    latency = messages * link.latency_seconds
    parts = size.num_parts
    return max(wire + latency + (encode + own) / parts, encode + own + (wire + latency) / parts) + decode


def all_gather_seconds(link: Link, codec: CodecCost, payload_bytes: int, world_size: int) -> float:
    """Return the time to encode once, gather every rank's payload and decode them all."""
    wire = all_gather_bytes(payload_bytes, world_size) / link.bytes_per_second
    work = codec.encode_seconds + world_size * codec.decode_seconds
    return wire + (world_size - 1) * link.latency_seconds + work
