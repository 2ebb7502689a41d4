"""The spool: numbered once, in order, whole after a crash, within its cap, exact about what it lost."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from gradwire.errors import SpoolBusyError, SpoolError
from gradwire.transport import frames
from gradwire.transport.spool import MAX_OPEN_BYTES, SealedBatch, Spool
from gradwire_protocol import limits
from hypothesis import given, settings
from hypothesis import strategies as st


def record(number: int, size: int = 0) -> bytes:
    return b'{"n":%d,"pad":"%s"}' % (number, b"x" * size)


def deliver(spool: Spool) -> list[SealedBatch]:
    """Take and acknowledge everything."""
    batches = []
    while (batch := spool.next_batch()) is not None:
        batches.append(batch)
        spool.acknowledge(batch.number)
    return batches


def records_of(batches: list[SealedBatch]) -> list[bytes]:
    return [one for batch in batches for one in batch.records]


def test_batches_are_numbered_from_one_and_hold_every_record_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(950):
        assert spool.append(record(number))
    batches = deliver(spool)
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert records_of(batches) == [record(number) for number in range(950)]
    assert max(len(batch.records) for batch in batches) == limits.MAX_BATCH_RECORDS
    assert spool.num_waiting == 0
    assert spool.num_acknowledged == 950


def test_batch_stays_until_it_is_acknowledged(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(record(1))
    first = spool.next_batch()
    spool.append(record(2))
    assert spool.next_batch() == first
    spool.acknowledge(1)
    second = spool.next_batch()
    assert second is not None
    assert (second.number, second.records) == (2, (record(2),))


def test_batch_never_exceeds_the_body_limit(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(60):
        assert spool.append(record(number, size=50_000))
    for batch in deliver(spool):
        assert sum(len(one) + 1 for one in batch.records) <= MAX_OPEN_BYTES < limits.MAX_BODY_BYTES


def test_record_larger_than_a_batch_is_dropped_and_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert not spool.append(record(1, size=limits.MAX_BODY_BYTES), 7)
    assert spool.num_dropped == 7
    assert spool.next_batch() is None


def test_full_spool_drops_new_measurements_exactly_and_keeps_the_numbers_contiguous(tmp_path: Path) -> None:
    cap_bytes = 64 * 1024
    spool = Spool(tmp_path, cap_bytes)
    kept = [number for number in range(500) if spool.append(record(number, size=1000), 2)]
    assert 0 < len(kept) < 500
    assert kept == list(range(len(kept))), "the newest go, the oldest stay"
    assert spool.num_dropped == 2 * (500 - len(kept))
    assert spool.append(b'{"type":"attempt_ended"}', may_use_reserve=True)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.segment")) <= cap_bytes
    batches = deliver(spool)
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert records_of(batches) == [*(record(number, size=1000) for number in kept), b'{"type":"attempt_ended"}']
    assert batches[-1].num_dropped == spool.num_dropped


def test_reserve_is_bounded_by_the_cap(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 32 * 1024)
    while spool.append(record(0, size=200), may_use_reserve=True):
        pass
    assert spool.used_bytes <= 32 * 1024
    assert spool.next_batch() is not None, "a full spool can still seal"
    assert spool.used_bytes <= 32 * 1024


def test_full_spool_takes_records_again_after_delivery(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 64 * 1024)
    while spool.append(record(0, size=1000)):
        pass
    deliver(spool)
    assert spool.append(record(1, size=1000))
    assert spool.next_batch() is not None


def test_acknowledged_segments_are_deleted(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 256 * 1024)
    for number in range(180):
        spool.append(record(number, size=1000))
        if number % 10 == 9:
            spool.next_batch()
            spool.acknowledge(number // 10)
    assert len(list(tmp_path.glob("*.segment"))) >= 1
    deliver(spool)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.segment")) < 80 * 1024


def test_reopened_spool_goes_on_where_it_was(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(5):
        spool.append(record(number), 3)
    first = spool.next_batch()
    spool.append(record(5))
    spool.count_dropped(4)
    spool.close()
    again = Spool(tmp_path)
    assert again.num_waiting == 16
    assert again.next_batch() == first
    again.acknowledge(1)
    second = again.next_batch()
    assert second is not None
    assert (second.number, second.records) == (2, (record(5),))


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(1, 200), flip=st.booleans())
def test_torn_or_rotten_end_costs_only_the_records_it_hits(
    tmp_path_factory: pytest.TempPathFactory, cut: int, flip: bool
) -> None:
    folder = tmp_path_factory.mktemp("spool")
    spool = Spool(folder)
    for number in range(10):
        spool.append(record(number, size=20))
    spool.close()
    (segment,) = folder.glob("*.segment")
    whole = segment.read_bytes()
    position = len(whole) - cut
    segment.write_bytes(
        whole[:position] + bytes([whole[position] ^ 0x55]) + whole[position + 1 :] if flip else whole[:position]
    )
    again = Spool(folder)
    num_whole = position // (len(whole) // 10)
    assert again.append(record(7, size=20))
    again.close()
    again = Spool(folder)
    assert again.num_waiting == num_whole + 1, "what was cut off does not come back"
    batch = again.next_batch()
    assert batch is not None
    assert batch.records == (*(record(number, size=20) for number in range(num_whole)), record(7, size=20))
    again.close()


def test_killed_writer_leaves_every_record_it_had_appended(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from gradwire.transport.spool import Spool
        spool = Spool(Path(sys.argv[1]))
        number = 0
        while True:
            spool.append(b'{"n":%d}' % number)
            print(number, flush=True)
            number += 1
        """
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    last = 0
    while last < 3000:
        last = int(writer.stdout.readline())
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate()
    last = max([last, *map(int, rest.split(b"\n")[:-1])])
    records = records_of(deliver(Spool(tmp_path)))
    assert records[: last + 1] == [b'{"n":%d}' % number for number in range(last + 1)]
    assert len(records) <= last + 2


def test_disk_that_takes_nothing_is_counted_and_recovers_by_itself(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    assert spool.append(record(1, size=100))
    full_at = spool.used_bytes + 40
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        # Writes beyond this size fail halfway, as on a full disk.
        resource.setrlimit(resource.RLIMIT_FSIZE, (full_at, limit[1]))
        assert not spool.append(record(2, size=100))
        assert not spool.append(record(3, size=100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert spool.num_dropped == 2
    assert spool.append(record(4, size=100))
    batch = spool.next_batch()
    assert batch is not None
    assert batch.records == (record(1, size=100), record(4, size=100))
    assert batch.num_dropped == 2
    spool.close()
    assert Spool(tmp_path).next_batch() == batch


def test_batch_that_the_disk_lost_goes_out_empty_and_counted(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    for number in range(limits.MAX_BATCH_RECORDS + 1):
        spool.append(record(number))
    (segment,) = tmp_path.glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[frames.HEADER_BYTES + 2] ^= 0xFF
    segment.write_bytes(data)
    first = spool.next_batch()
    assert first == SealedBatch(1, limits.MAX_BATCH_RECORDS, 0, ())
    spool.acknowledge(1)
    second = spool.next_batch()
    assert second is not None
    assert second.number == 2
    assert second.records == (record(limits.MAX_BATCH_RECORDS),)


def test_batch_given_up_keeps_its_number(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    spool.append(record(1), 5)
    spool.next_batch()
    spool.give_up(1)
    assert spool.next_batch() == SealedBatch(1, 5, 0, ())
    assert spool.num_dropped == 5
    spool.acknowledge(1)
    assert spool.num_acknowledged == 0


def fill_three_batches(spool: Spool) -> list[bytes]:
    """Append two sealed batches and some open records; return all of them."""
    records = [record(number, size=50) for number in range(2 * limits.MAX_BATCH_RECORDS + 10)]
    for one in records:
        spool.append(one)
    assert spool.next_batch() is not None
    return records


def test_split_batch_goes_out_in_halves_and_later_ones_follow(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    records = fill_three_batches(spool)
    assert spool.split(1)
    spool.append(record(999))
    batches = deliver(spool)
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))
    assert [len(batch.records) for batch in batches[:3]] == [100, 100, 200]
    assert records_of(batches) == [*records, record(999)]
    assert (spool.num_acknowledged, spool.num_dropped, spool.num_waiting) == (len(records) + 1, 0, 0)


def test_split_keeps_later_batches_small_and_can_be_repeated_down_to_single_records(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    records = fill_three_batches(spool)
    num_records = limits.MAX_BATCH_RECORDS
    while num_records > 1:
        assert spool.split(1)
        num_records //= 2
        batch = spool.next_batch()
        assert batch is not None
        assert len(batch.records) == num_records
    assert not spool.split(1)
    spool.append(record(1, size=50))
    assert records_of(deliver(spool)) == [*records, record(1, size=50)]


@pytest.mark.parametrize("cap_bytes", [60_000, 10_000_000])
def test_split_survives_a_crash_with_the_other_segments_still_there(tmp_path: Path, cap_bytes: int) -> None:
    spool = Spool(tmp_path, cap_bytes)
    records = fill_three_batches(spool)
    before = {path: path.read_bytes() for path in tmp_path.glob("*.segment")}
    assert spool.split(1)
    (kept,) = tmp_path.glob("*.segment")
    spool.close()
    for path, data in before.items():
        if path != kept:
            path.write_bytes(data)
    reopened = Spool(tmp_path, cap_bytes)
    batches = deliver(reopened)
    assert records_of(batches) == records
    assert [batch.number for batch in batches] == list(range(1, len(batches) + 1))


def test_split_counts_what_the_disk_lost_meanwhile(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 60_000)
    fill_three_batches(spool)
    *_, second, _ = sorted(tmp_path.glob("*.segment"))
    second.write_bytes(b"")
    assert spool.split(1)
    batches = deliver(spool)
    assert [len(batch.records) for batch in batches] == [100, 100, 0, 10]
    assert (spool.num_dropped, spool.num_acknowledged) == (200, 210)


def test_split_that_the_disk_does_not_take_changes_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    records = fill_three_batches(spool)
    (tmp_path / "0000000000000001.draft").mkdir()
    assert not spool.split(1)
    assert records_of(deliver(spool)) == records


def test_second_process_cannot_open_a_spool_in_use(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    with pytest.raises(SpoolBusyError, match="another process"):
        Spool(tmp_path)
    spool.close()
    Spool(tmp_path).close()


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpoolError, match=r"file/spool cannot be used"):
        Spool(tmp_path / "file" / "spool")


def test_closed_spool_writes_into_nobody_elses_file(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    spool.close()
    others = [os.open(tmp_path / f"other-{number}", os.O_RDWR | os.O_CREAT) for number in range(4)]
    assert not spool.append(record(1))
    assert [os.fstat(other).st_size for other in others] == [0] * 4
    for other in others:
        os.close(other)
