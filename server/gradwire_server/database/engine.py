"""The database as the rest of the service sees it: read here, write there."""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError

from gradwire_server.database.writer import Writer, as_service_error

T = TypeVar("T")

# Seconds that a statement waits for another process's lock before it fails as unavailable.
BUSY_SECONDS = 5.0
# Between attempts where SQLite itself does not wait.
RETRY_SECONDS = 0.02


def make_engine(url: str, *, is_writer: bool) -> Engine:
    """Return an engine whose transactions begin where SQLAlchemy says, not where sqlite3 guesses.

    On SQLite a writer begins with BEGIN IMMEDIATE, so that it waits for a lock instead of failing when a read
    transaction turns into a writing one; a reader sees one snapshot and cannot write.
    """
    # Readers live in threads of Starlette's pool (40) and of asyncio's.
    engine = create_engine(url, pool_size=1 if is_writer else 8, max_overflow=0 if is_writer else 64)
    if engine.dialect.name != "sqlite":
        return engine
    settings = [f"busy_timeout={int(BUSY_SECONDS * 1000)}", "foreign_keys=ON"]
    settings += ["synchronous=FULL"] if is_writer else ["query_only=ON"]

    @event.listens_for(engine, "connect")
    def _configure(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None
        for setting in settings:
            connection.execute(f"PRAGMA {setting}")
        if is_writer:
            _write_ahead(connection)

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")

    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Turn the write-ahead log on; SQLite itself does not wait for others that do so at the same moment."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_SECONDS)
        else:
            return


class Database:
    """Readers on a pool of connections and one writer thread.

    A `read` of SQLite never waits for the writer. What a `write` returned is committed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._write_engine = make_engine(url, is_writer=True)
        self._read_engine = make_engine(url, is_writer=False)
        self._writer = Writer(self._write_engine)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a connection that sees one snapshot; for threads, never for the event loop.

        Raises:
            UnavailableError: The database does not answer.
        """
        try:
            with self._read_engine.connect() as connection:
                yield connection
        except OperationalError as error:
            raise as_service_error(error) from error

    async def query(self, work: Callable[[Connection], T]) -> T:
        """Run a read in a thread, for callers on the event loop; the connection is returned before this returns.

        Raises:
            UnavailableError: The database does not answer.
        """

        def run() -> T:
            with self.read() as connection:
                return work(connection)

        return await asyncio.to_thread(run)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on the writer thread and return its result after the commit.

        The work must do nothing but use its connection: it shares its transaction with other works.

        Raises:
            UnavailableError: The database does not answer, its disk is full, or the server is stopping.
        """
        return await asyncio.wrap_future(self._writer.submit(work))

    def write_sync(self, work: Callable[[Connection], T]) -> T:
        """Do what `write` does, for callers in threads."""
        return self._writer.submit(work).result()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Commit what is queued and close all connections; the WAL file is folded into the database."""
        self._writer.close()
        self._read_engine.dispose()
        self._write_engine.dispose()
