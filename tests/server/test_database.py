import multiprocessing
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from gradwire_server.database import engine
from gradwire_server.database.engine import Database, make_engine
from gradwire_server.errors import UnavailableError
from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "some.db"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with Database(f"sqlite:///{path}") as database:
        database.write_sync(lambda connection: connection.execute(text("CREATE TABLE t (x INTEGER UNIQUE)")))
        yield database


def put(value: int) -> "object":
    def work(connection: Connection) -> int:
        connection.execute(text("INSERT INTO t VALUES (:x)"), {"x": value})
        return value

    return work


def values(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        found = [row[0] for row in connection.execute("SELECT x FROM t ORDER BY x")]
    connection.close()
    return found


def submit(database: Database, work: object) -> "Future[object]":
    return database._writer.submit(work)  # type: ignore[arg-type]


def hold_writer(database: Database) -> threading.Event:
    """Keep the writer busy until the returned event is set, so that what is queued meanwhile forms one group."""
    is_busy, go = threading.Event(), threading.Event()

    def work(connection: Connection) -> None:
        is_busy.set()
        assert go.wait(20)

    submit(database, work)
    assert is_busy.wait(20)
    return go


def test_write_is_committed_when_it_returns(database: Database, path: Path) -> None:
    assert database.write_sync(put(1)) == 1  # type: ignore[arg-type]
    assert values(path) == [1]


def test_failing_work_leaves_its_group_alone(database: Database, path: Path) -> None:
    go = hold_writer(database)
    futures = [submit(database, put(value)) for value in (1, 2, 2, 3)]
    go.set()
    assert [futures[i].result(20) for i in (0, 1, 3)] == [1, 2, 3]
    with pytest.raises(Exception, match="UNIQUE"):
        futures[2].result(20)
    assert values(path) == [1, 2, 3]


def test_queued_works_share_a_commit(database: Database, path: Path) -> None:
    seen: list[list[int]] = []

    def look(connection: Connection) -> None:
        # What another connection sees while the group's last work runs: none of its neighbours' rows.
        seen.append(values(path))

    go = hold_writer(database)
    futures = [submit(database, put(1)), submit(database, put(2)), submit(database, look)]
    go.set()
    for future in futures:
        future.result(20)
    assert seen == [[]]
    assert values(path) == [1, 2]


def test_future_completes_only_after_the_commit(database: Database, path: Path) -> None:
    seen: list[list[int]] = []
    go = hold_writer(database)
    future = submit(database, put(1))
    future.add_done_callback(lambda _: seen.append(values(path)))
    go.set()
    assert future.result(20) == 1
    database.close()
    assert seen == [[1]]


def test_commit_that_fails_fails_every_work_of_the_group(database: Database, path: Path) -> None:
    def spoil(connection: Connection) -> None:
        # A deferred foreign key is checked at the commit, the way a full disk is met there.
        connection.execute(text("CREATE TABLE p (id INTEGER PRIMARY KEY)"))
        connection.execute(text("CREATE TABLE c (p INTEGER REFERENCES p (id) DEFERRABLE INITIALLY DEFERRED)"))
        connection.execute(text("INSERT INTO c VALUES (7)"))

    go = hold_writer(database)
    futures = [submit(database, put(1)), submit(database, spoil), submit(database, put(2))]
    go.set()
    for future in futures:
        with pytest.raises(Exception, match="FOREIGN KEY"):
            future.result(20)
    assert values(path) == []
    assert database.write_sync(put(3)) == 3  # type: ignore[arg-type]


def test_work_that_was_cancelled_before_it_began_is_not_run(database: Database, path: Path) -> None:
    go = hold_writer(database)
    cancelled, kept = submit(database, put(1)), submit(database, put(2))
    assert cancelled.cancel()
    go.set()
    kept.result(20)
    assert values(path) == [2]


def test_close_commits_what_is_queued_and_refuses_more(database: Database, path: Path) -> None:
    go = hold_writer(database)
    futures = [submit(database, put(value)) for value in range(300)]
    go.set()
    database.close()
    assert all(future.done() for future in futures)
    assert len(values(path)) == 300
    with pytest.raises(UnavailableError, match="stopping"):
        database.write_sync(put(1))  # type: ignore[arg-type]


def test_locked_database_is_unavailable_and_recovers(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.write_sync(lambda connection: connection.execute(text("PRAGMA busy_timeout=50")))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="locked"):
        database.write_sync(put(1))  # type: ignore[arg-type]
    with database.read() as connection:
        assert connection.execute(text("SELECT count(*) FROM t")).scalar() == 0
    other.execute("ROLLBACK")
    other.close()
    assert database.write_sync(put(1)) == 1  # type: ignore[arg-type]


def test_reader_cannot_write(database: Database) -> None:
    with pytest.raises(UnavailableError, match="readonly"), database.read() as connection:
        connection.execute(text("INSERT INTO t VALUES (1)"))


def test_reader_sees_one_snapshot(database: Database) -> None:
    query = text("SELECT count(*) FROM t")
    with database.read() as connection:
        before = connection.execute(query).scalar()
        database.write_sync(put(1))  # type: ignore[arg-type]
        assert connection.execute(query).scalar() == before == 0


def test_commits_wait_for_the_disk(path: Path) -> None:
    writer = engine.make_engine(f"sqlite:///{path}", is_writer=True)
    with writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        # 2 is FULL: what was answered survives a power cut.
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    writer.dispose()


def test_full_disk_is_unavailable_and_writing_resumes_by_itself(database: Database, path: Path) -> None:
    def limit_pages(num_pages: int) -> None:
        database.write_sync(
            lambda connection: connection.execute(text(f"PRAGMA max_page_count={num_pages}")).scalar()
        )

    def put_much(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE big (x BLOB)"))
        connection.execute(text("INSERT INTO big VALUES (zeroblob(1000000))"))

    # SQLite then says what it says of a full disk.
    limit_pages(20)
    go = hold_writer(database)
    futures = [submit(database, put(1)), submit(database, put_much)]
    go.set()
    with pytest.raises(UnavailableError, match="full"):
        futures[1].result(20)
    assert values(path) == ([1] if futures[0].exception(20) is None else [])
    limit_pages(100_000)
    database.write_sync(put_much)
    assert database.write_sync(put(2)) == 2  # type: ignore[arg-type]


def open_each(gate: Any, paths: list[Path], failures: Any) -> None:
    for path in paths:
        gate.wait()
        try:
            engine = make_engine(f"sqlite:///{path}", is_writer=True)
            with engine.begin() as connection:
                connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS t (x)")
            engine.dispose()
        except OperationalError as error:
            failures.put(str(error))


def test_processes_may_open_a_new_database_at_the_same_moment(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    gate, failures = context.Barrier(6), context.Queue()
    paths = [tmp_path / f"{index}.db" for index in range(60)]
    processes = [context.Process(target=open_each, args=(gate, paths, failures)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert failures.empty()
    assert [process.exitcode for process in processes] == [0] * 6
