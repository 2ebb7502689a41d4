"""Frames of a spool segment: length, checksum and bytes, so that a torn or rotten end is told from a whole one."""

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct

RECORD = 1
SEAL = 2

# Length of the body, CRC-32 of everything after the checksum, kind, weight; little-endian.
_LENGTH_AND_CHECKSUM = struct.Struct("<II")
_KIND_AND_WEIGHT = struct.Struct("<BI")
_SEAL = struct.Struct("<QQ")

HEADER_BYTES = _LENGTH_AND_CHECKSUM.size + _KIND_AND_WEIGHT.size
SEAL_BYTES = HEADER_BYTES + _SEAL.size


class Frame(Struct, frozen=True):
    """One frame: `weight` counts the measurements in `body`, `end` is the offset after it."""

    kind: int
    weight: int
    body: bytes
    end: int


def pack(kind: int, weight: int, body: bytes) -> bytes:
    """Return the frame's bytes; `weight` counts the measurements in `body`."""
    checked = _KIND_AND_WEIGHT.pack(kind, weight) + body
    return _LENGTH_AND_CHECKSUM.pack(len(body), zlib.crc32(checked)) + checked


def pack_seal(number: int, num_dropped: int, weight: int) -> bytes:
    """Return the frame that ends batch `number`; `weight` is the sum over its records."""
    return pack(SEAL, weight, _SEAL.pack(number, num_dropped))


def seal(number: int, num_dropped: int, weight: int) -> Frame:
    """Return the seal of a batch as it would be read."""
    return Frame(SEAL, weight, _SEAL.pack(number, num_dropped), 0)


def unpack_seal(body: bytes) -> tuple[int, int]:
    """Return number and drop count of the batch that a seal's body ends."""
    number, num_dropped = _SEAL.unpack(body)
    return number, num_dropped


def read(file: BinaryIO) -> Iterator[Frame]:
    """Yield the frames from the file's position on, up to its end or the first torn or rotten one."""
    offset = file.tell()
    while True:
        header = file.read(HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return
        length, checksum = _LENGTH_AND_CHECKSUM.unpack_from(header)
        kind, weight = _KIND_AND_WEIGHT.unpack_from(header, _LENGTH_AND_CHECKSUM.size)
        body = file.read(length)
        if len(body) < length or zlib.crc32(header[_LENGTH_AND_CHECKSUM.size :] + body) != checksum:
            return
        offset += HEADER_BYTES + length
        yield Frame(kind, weight, body, offset)
