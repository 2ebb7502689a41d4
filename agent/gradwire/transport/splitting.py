"""A spool whose oldest batch becomes two, since something on the way takes less than the server does."""

from collections.abc import Iterator

from gradwire.transport import frames
from gradwire.transport.frames import Frame


def halved(waiting: Iterator[Frame]) -> Iterator[bytes]:
    """Yield frames as bytes: the first batch with a seal in its middle as well, all later numbers one up."""
    first, end = _first_batch(waiting)
    number, num_dropped = frames.unpack_seal(end.body)
    half = len(first) // 2
    for index, part in enumerate((first[:half], first[half:])):
        for frame in part:
            yield frames.pack(frame.kind, frame.weight, frame.body)
        yield frames.pack_seal(number + index, num_dropped, sum(frame.weight for frame in part))
    for frame in waiting:
        if frame.kind == frames.SEAL:
            later, num_dropped = frames.unpack_seal(frame.body)
            yield frames.pack_seal(later + 1, num_dropped, frame.weight)
        else:
            yield frames.pack(frame.kind, frame.weight, frame.body)


def _first_batch(waiting: Iterator[Frame]) -> tuple[list[Frame], Frame]:
    records: list[Frame] = []
    for frame in waiting:
        if frame.kind == frames.SEAL:
            return records, frame
        records.append(frame)
    raise AssertionError("what waits begins with a sealed batch")
