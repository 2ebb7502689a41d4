"""The spool: what a stream has to deliver, on disk first, numbered once, within a stated size.

Records are appended as they come and survive a crash of the process (not of the machine: nothing is synced, which
would cost a disk flush per second). `next_batch` seals the open records into a batch with the next number, as late
as possible, so that an outage is delivered in few large batches. A batch never spans two segments.
"""

import contextlib
import fcntl
import os
import shutil
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from gradwire_protocol import limits
from msgspec import Struct
from msgspec.structs import replace

from gradwire.errors import SpoolBusyError, SpoolError
from gradwire.transport import frames
from gradwire.transport.splitting import halved

DEFAULT_CAP_BYTES = 256 * 1024 * 1024

# Part of the cap that only events, results, start and end may use: a full spool still says what happened.
_RESERVE_BYTES = 1024 * 1024
_SEGMENT_BYTES = 4 * 1024 * 1024

# The batch's envelope: ids, numbers and the model's name; less than 1 kB, with room for later fields.
_ENVELOPE_BYTES = 4096
MAX_OPEN_BYTES = limits.MAX_BODY_BYTES - _ENVELOPE_BYTES


class SealedBatch(Struct, frozen=True):
    """A numbered batch: its records as JSON, and the drop count of the stream when it was sealed."""

    number: int
    num_dropped: int
    weight: int
    records: tuple[bytes, ...]


class _Segment:
    """One append-only file; `size` is the offset after its last whole frame."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.last_number = 0


class _Entry(Struct, frozen=True):
    """Where a sealed batch lies."""

    number: int
    num_dropped: int
    weight: int
    segment: _Segment
    start: int
    is_lost: bool = False


class Spool:
    """Append-only segments of one stream in one folder, held by one process at a time; thread-safe."""

    def __init__(self, folder: Path, cap_bytes: int = DEFAULT_CAP_BYTES) -> None:
        """Open or create the spool and recover what is in it; a torn last frame is cut off.

        Raises:
            SpoolBusyError: Another live process holds it.
            SpoolError: The folder cannot be made, locked or written.
        """
        self.folder = folder
        self.cap_bytes = cap_bytes
        self.num_dropped = 0
        self.num_acknowledged = 0
        self._small_cap_bytes = cap_bytes - min(_RESERVE_BYTES, cap_bytes // 8)
        self._segment_bytes = min(_SEGMENT_BYTES, max(cap_bytes // 4, 1))
        self._lock = threading.RLock()
        self._segments: deque[_Segment] = deque()
        self._sealed: deque[_Entry] = deque()
        self._next_number = 1
        # Most that a batch's records may take; less than at first where something on the way takes less.
        self._most_open_bytes = MAX_OPEN_BYTES
        self._clear_open(0)
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock_file, self.is_locked = _take_lock(folder)
            self._recover()
            self._file = self._open_active()
        except SpoolError:
            raise
        except OSError as error:
            raise SpoolError(f"the spool folder {folder} cannot be used: {error.strerror or error}") from error

    @property
    def used_bytes(self) -> int:
        """Size of all segments."""
        with self._lock:
            return sum(segment.size for segment in self._segments)

    @property
    def num_waiting(self) -> int:
        """Measurements that are in the spool and not acknowledged."""
        with self._lock:
            return sum(entry.weight for entry in self._sealed) + self._open_weight

    @property
    def has_sealed(self) -> bool:
        """Whether a numbered batch waits for its acknowledgement."""
        return bool(self._sealed)

    @property
    def has_open(self) -> bool:
        """Whether records wait for being sealed."""
        return self._open_records > 0

    def append(self, record: bytes, weight: int = 1, *, may_use_reserve: bool = False) -> bool:
        """Write one record; one that does not fit, or that the disk does not take, is counted and forgotten.

        Args:
            record: JSON of at most `MAX_OPEN_BYTES`.
            weight: How many measurements it holds: what is counted when it is dropped.
            may_use_reserve: For the few small records that a full spool must still take.

        Returns:
            Whether it was written.
        """
        with self._lock:
            is_over_batch = (
                self._open_records >= limits.MAX_BATCH_RECORDS
                or self._open_bytes + len(record) + 1 > self._most_open_bytes
            )
            is_over_batch = is_over_batch and self._open_records > 0
            if len(record) > MAX_OPEN_BYTES or (is_over_batch and not self._seal()):
                self.num_dropped += weight
                return False
            frame = frames.pack(frames.RECORD, weight, record)
            cap_bytes = self.cap_bytes if may_use_reserve else self._small_cap_bytes
            # Room for one seal is kept with every record, so that sealing never fails for want of it.
            is_full = self.used_bytes + len(frame) + frames.SEAL_BYTES > cap_bytes
            if is_full or not self._write(frame):
                self.num_dropped += weight
                return False
            self._open_records += 1
            self._open_bytes += len(record) + 1
            self._open_weight += weight
            return True

    def count_dropped(self, weight: int) -> None:
        """Count measurements that were lost before they reached the spool."""
        with self._lock:
            self.num_dropped += weight

    def next_batch(self) -> SealedBatch | None:
        """Return the oldest batch that is not acknowledged, sealing the open records if there is no older one."""
        with self._lock:
            if not self._sealed and not (self._open_records and self._seal()):
                return None
            return self._load(self._sealed[0])

    def acknowledge(self, number: int) -> None:
        """Forget every batch up to `number`; segments that hold nothing else are deleted."""
        with self._lock:
            while self._sealed and self._sealed[0].number <= number:
                self.num_acknowledged += self._sealed.popleft().weight
            while len(self._segments) > 1 and self._segments[0].last_number <= number:
                # A segment that cannot be deleted is sent again after a restart, and stored once.
                self._segments.popleft().path.unlink(missing_ok=True)

    def give_up(self, number: int) -> None:
        """Count batch `number`, if it is the oldest, as dropped; its number goes out empty, so the rest follows."""
        with self._lock:
            if self._sealed and self._sealed[0].number == number:
                self._lose(0)

    def _lose(self, index: int) -> None:
        entry = self._sealed[index]
        if not entry.is_lost:
            self.num_dropped += entry.weight
            self._sealed[index] = replace(entry, num_dropped=self.num_dropped, weight=0, is_lost=True)

    def split(self, number: int) -> bool:
        """Make two batches of batch `number`, the oldest, which nobody took as a whole; later ones move up by one.

        Later batches are kept to its half from now on.

        Returns:
            False if it holds a single record, or the disk does not take it: then nothing has changed.

        Cost: writes everything that waits once more.
        """
        with self._lock:
            entry = self._sealed[0] if self._sealed and self._sealed[0].number == number else None
            records = _read_frames(entry) if entry is not None and not entry.is_lost else None
            if records is None or len(records) < 2 or not self._rewrite(halved(self._waiting_frames())):
                return False
            self._most_open_bytes = sum(len(frame.body) for frame in records) // 2
            return True

    def _waiting_frames(self) -> Iterator[frames.Frame]:
        """Yield what is not acknowledged, oldest first; batches that the disk lost come without records."""
        for index in range(len(self._sealed)):
            records = _read_frames(self._sealed[index]) or []
            if not records:
                self._lose(index)
            yield from records
            entry = self._sealed[index]
            yield frames.seal(entry.number, entry.num_dropped, entry.weight)
        with self._segments[-1].path.open("rb") as file:
            file.seek(self._open_start)
            yield from frames.read(file)

    def _rewrite(self, waiting: Iterator[bytes]) -> bool:
        """Write frames into one segment in the place of all others."""
        first = self._segments[0].path
        draft = first.with_suffix(".draft")
        try:
            with draft.open("wb") as file:
                file.writelines(waiting)
            # Should the process die after this, the other segments hold numbers that are in this one as well.
            draft.replace(first)
        except OSError:
            _unlink(draft)
            return False
        for segment in list(self._segments)[1:]:
            _unlink(segment.path)
        _close(self._file)
        # Should it not open again, its number must not be written to: it may be somebody else's by then.
        self._file = -1
        num_dropped = self.num_dropped
        self._segments.clear()
        self._sealed.clear()
        self._recover()
        self._file = self._open_active()
        self.num_dropped = num_dropped
        return True

    def close(self) -> None:
        """Close the files and let others take the spool; what is in it stays."""
        with self._lock:
            self._close_files()

    def remove(self) -> None:
        """Close it and delete the folder with everything in it."""
        with self._lock:
            shutil.rmtree(self.folder, ignore_errors=True)
            self._close_files()
            # Network file systems keep a file's folder until the file is closed.
            shutil.rmtree(self.folder, ignore_errors=True)

    def _close_files(self) -> None:
        for file in (self._file, self._lock_file):
            if file >= 0:
                _close(file)
        # A late writer meets no file, rather than one that got the same number.
        self._file = self._lock_file = -1

    def _seal(self) -> bool:
        number, segment = self._next_number, self._segments[-1]
        start, weight = self._open_start, self._open_weight
        if not self._write(frames.pack_seal(number, self.num_dropped, weight)):
            return False
        self._sealed.append(_Entry(number, self.num_dropped, weight, segment, start))
        segment.last_number = number
        self._next_number = number + 1
        if segment.size >= self._segment_bytes:
            self._rotate()
        self._clear_open(self._segments[-1].size)
        return True

    def _rotate(self) -> None:
        segment = _Segment(self._path(self._next_number))
        try:
            file = _open_for_writing(segment.path)
        except OSError:
            # The old segment grows on; the next seal tries again.
            return
        _close(self._file)
        self._file = file
        self._segments.append(segment)

    def _write(self, frame: bytes) -> bool:
        segment = self._segments[-1]
        try:
            written = os.pwrite(self._file, frame, segment.size)
        except OSError:
            return False
        # A disk that filled up halfway leaves a torn frame, which the next write overwrites.
        if written < len(frame):
            return False
        segment.size += written
        return True

    def _load(self, entry: _Entry) -> SealedBatch:
        records = None if entry.is_lost else _read_frames(entry)
        if records is None and not entry.is_lost:
            # The disk lost what it took.
            self.give_up(entry.number)
            entry = self._sealed[0]
        bodies = tuple(frame.body for frame in records or ())
        return SealedBatch(entry.number, entry.num_dropped, entry.weight, bodies)

    def _recover(self) -> None:
        for path in sorted(path for path in self.folder.glob("*.segment") if path.stem.isdigit()):
            if self._segments and int(path.stem) < self._next_number:
                # What it holds was written once more, see `_rewrite`.
                path.unlink(missing_ok=True)
                continue
            segment = _Segment(path)
            segment.last_number = int(path.stem) - 1
            self._next_number = int(path.stem)
            self._segments.append(segment)
            self._clear_open(0)
            with path.open("rb") as file:
                for frame in frames.read(file):
                    self._take(frame, segment)

    def _take(self, frame: frames.Frame, segment: _Segment) -> None:
        segment.size = frame.end
        if frame.kind != frames.SEAL:
            self._open_records += 1
            self._open_bytes += len(frame.body) + 1
            self._open_weight += frame.weight
            return
        number, num_dropped = frames.unpack_seal(frame.body)
        self._sealed.append(_Entry(number, num_dropped, frame.weight, segment, self._open_start))
        self.num_dropped = num_dropped
        segment.last_number = number
        self._next_number = number + 1
        self._clear_open(frame.end)

    def _open_active(self) -> int:
        if not self._segments:
            self._segments.append(_Segment(self._path(self._next_number)))
        file = _open_for_writing(self._segments[-1].path)
        os.ftruncate(file, self._segments[-1].size)
        return file

    def _clear_open(self, start: int) -> None:
        self._open_start = start
        self._open_records = 0
        self._open_bytes = 0
        self._open_weight = 0

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:016d}.segment"


def _read_frames(entry: _Entry) -> list[frames.Frame] | None:
    """Return the records of a batch, None if the disk lost some."""
    records: list[frames.Frame] = []
    with contextlib.suppress(OSError), entry.segment.path.open("rb") as file:
        file.seek(entry.start)
        for frame in frames.read(file):
            if frame.kind == frames.SEAL:
                return records
            records.append(frame)
    return None


def _open_for_writing(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _close(file: int) -> None:
    # Network file systems tell a full disk only here; what was lost is found by its checksum when it is read.
    with contextlib.suppress(OSError):
        os.close(file)


def _take_lock(folder: Path) -> tuple[int, bool]:
    """Return the lock's file and whether it is locked: some network file systems have no locks."""
    file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise SpoolBusyError(f"the spool folder {folder} is held by another process, which delivers it") from error
    except OSError:
        return file, False
    return file, True
