"""Leftovers are delivered by others only when nobody writes them any more."""

import errno
import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from agent_stream import attempt_started, window
from gradwire.errors import SpoolBusyError
from gradwire.transport import place
from gradwire.transport.batches import encode_record
from gradwire.transport.place import StreamFacts
from gradwire.transport.replay import adopt, sync
from gradwire.transport.spool import Spool
from gradwire_protocol.identity import new_id
from scripted_server import ScriptedServer, accepted


def leave(root: Path, **changes: object) -> tuple[Path, StreamFacts]:
    """Make a spool with a start and a window, as a process that is gone leaves it."""
    run, attempt = new_id(), new_id()
    folder = place.stream_folder(root, run, attempt, "model", 0)
    spool = Spool(folder)
    spool.append(encode_record(attempt_started()))
    spool.append(encode_record(window(1)))
    spool.close()
    facts = StreamFacts(run=run, attempt=attempt, model="model", node=0, started=attempt_started())
    place.write_facts(folder, facts, None)
    written = place.read_facts(folder)
    assert written is not None
    written = msgspec.structs.replace(written, **changes)
    (folder / place.STREAM_FILE).write_bytes(msgspec.json.encode(written))
    return folder, written


def age(folder: Path, seconds: float) -> None:
    for path in folder.glob("*.segment"):
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture
def no_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, which no machine of a test suite has."""

    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)


def test_spool_of_another_host_is_left_alone_while_it_is_written(tmp_path: Path) -> None:
    folder, facts = leave(tmp_path, host="node-17")
    with pytest.raises(SpoolBusyError, match="on node-17 wrote to it less than 120 s ago"):
        adopt(folder, facts)
    age(folder, 121.0)
    adopt(folder, facts).close()


@pytest.mark.usefixtures("no_locks")
def test_spool_without_locks_is_left_alone_while_its_process_lives(tmp_path: Path) -> None:
    folder, facts = leave(tmp_path)
    with pytest.raises(SpoolBusyError, match=f"process {os.getpid()} on .* lives"):
        adopt(folder, facts)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    folder, facts = leave(tmp_path, process=gone.pid)
    adopt(folder, facts).close()


def test_sync_delivers_each_stream_and_removes_it(tmp_path: Path) -> None:
    left = [leave(tmp_path) for _ in range(3)]
    with ScriptedServer(accepted) as server:
        outcomes = list(sync([tmp_path], server=server.url, token="t"))
        assert {facts.attempt for facts, _ in outcomes} == {facts.attempt for _, facts in left}
        assert {heard.batch.attempt for heard in server.heard} == {facts.attempt for _, facts in left}
    assert list(tmp_path.iterdir()) == []


def test_sync_of_one_stream_leaves_the_others(tmp_path: Path) -> None:
    one, other = leave(tmp_path), leave(tmp_path)
    with ScriptedServer(accepted) as server:
        list(sync([one[0]], server=server.url, token="t"))
    assert place.find_streams(tmp_path) == [other]


def test_damaged_facts_hide_only_their_own_stream(tmp_path: Path) -> None:
    broken, whole = leave(tmp_path), leave(tmp_path)
    (broken[0] / place.STREAM_FILE).write_text('{"run":')
    assert place.find_streams(tmp_path) == [whole]
