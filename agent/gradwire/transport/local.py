"""What travels over a node's Unix socket: length-prefixed msgpack, since JSON has no NaN and a loss may be one.

A rank sends `Hello`, then parcels and losses, and ends with `Goodbye`, which is answered by `Taken`. The operator's
command sends `Command` and gets `NodeStatus`, for a plan `PlanPage`, or for a rollback `Asked` and later `Outcome`.
"""

import os
import socket
import struct
from collections.abc import Iterator
from typing import Literal

import msgspec
from gradwire_protocol.records import AttemptEnded, Record, Result
from msgspec import Struct

MAX_MESSAGE_BYTES = 4 * 1024 * 1024

_LENGTH = struct.Struct(">I")


class Hello(Struct, tag="hello"):
    """First message of a rank."""

    rank: int


class Parcel(Struct, tag="parcel"):
    """A record of a rank."""

    record: Record
    urgent: bool = False


class LossPart(Struct, tag="loss"):
    """Losses of a rank by step, each with its weight in the mean over ranks; non-finite ones as they are."""

    steps: list[int]
    values: list[float]
    weights: list[float]


class Lost(Struct, tag="lost"):
    """Measurements that a rank could not hand over."""

    weight: int


class Goodbye(Struct, tag="goodbye"):
    """Last message of a rank."""

    ended: AttemptEnded | None = None


class Taken(Struct, tag="taken"):
    """Answer to `Goodbye`: the node has everything the rank sent."""


class Command(Struct, tag="command"):
    """What a local operator asks for."""

    command: Literal["status", "plan", "rollback"]
    reason: str = ""
    # With "plan": tensors that were told already.
    offset: int = 0


class NodeStatus(Struct, tag="status", kw_only=True):
    """Answer to the command "status"."""

    run: str
    run_name: str
    attempt: str
    model: str
    node: int
    host: str
    process: int
    ranks: tuple[int, ...]
    world_size: int
    device: str
    codec: str
    # Step since which `codec` is in use, and the newest step that was reported.
    since_step: int
    last_step: int
    is_steered: bool
    server: str | None
    # What keeps batches from being delivered; empty while they are.
    trouble: str
    num_delivered: int
    num_waiting: int
    num_dropped: int
    spool: str


class TensorPlan(Struct, frozen=True, kw_only=True):
    """How one parameter's gradient travels."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    # The codec, or "exact".
    codec: str
    # Why it travels exactly; empty if it does not.
    reason: str
    # What one rank sends for it in one step, uncompressed and as it is; None before its bucket was seen.
    exact_bytes: int | None
    sent_bytes: int | None


class PlanPage(Struct, tag="plan", kw_only=True):
    """Answer to the command "plan": the plan in use, and some of the tensors from `offset` on."""

    codec: str
    tensors: tuple[TensorPlan, ...]
    num_tensors: int
    # Buckets that have something to compress, and those of them that travel exactly because that is faster.
    num_buckets: int
    num_spared: int
    # What the spared ones should take together, uncompressed and compressed.
    exact_seconds: float
    lossy_seconds: float
    # Extra memory of the node's first rank, and what the codecs would take, with every bucket compressed.
    memory_bytes: int
    codec_memory_bytes: dict[str, int]


class Asked(Struct, tag="asked", kw_only=True):
    """First answer to the command "rollback": the session knows; `codec` was in use when it came."""

    codec: str
    since_step: int


class Outcome(Struct, tag="outcome"):
    """Last answer to the command "rollback": what the ranks decided."""

    result: Result


class Denied(Struct, tag="denied"):
    """Answer to a command that cannot be served."""

    message: str


FromRank = Parcel | LossPart | Lost
Request = Hello | Parcel | LossPart | Lost | Goodbye | Command
Reply = Taken | NodeStatus | PlanPage | Asked | Outcome | Denied

_REQUEST = msgspec.msgpack.Decoder(Request)
_REPLY = msgspec.msgpack.Decoder(Reply)


def pack(message: Request | Reply) -> bytes:
    """Return a message with its length in front."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


class Inlet:
    """Cuts a byte stream into the messages of one end."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def requests(self, data: bytes) -> Iterator[Request]:
        """Add bytes and yield every message that is whole.

        Raises:
            msgspec.DecodeError: The other end does not speak this protocol; close the connection.
        """
        return (_REQUEST.decode(body) for body in self._bodies(data))

    def replies(self, data: bytes) -> Iterator[Reply]:
        """Add bytes and yield every answer that is whole.

        Raises:
            msgspec.DecodeError: The other end does not speak this protocol; close the connection.
        """
        return (_REPLY.decode(body) for body in self._bodies(data))

    def _bodies(self, data: bytes) -> Iterator[bytes]:
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > MAX_MESSAGE_BYTES:
                raise msgspec.DecodeError(f"a message of {length} bytes; wanted: at most {MAX_MESSAGE_BYTES}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body


def is_same_user(connection: socket.socket) -> bool:
    """Return whether the other end is this user or root; true where the system cannot tell: the mode guards too."""
    option = getattr(socket, "SO_PEERCRED", None)
    if option is None:
        return True
    _, user, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, option, struct.calcsize("iII")))
    return user in (os.getuid(), 0)
