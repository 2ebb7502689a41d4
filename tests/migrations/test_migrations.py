import hashlib
import multiprocessing
import sqlite3
from pathlib import Path

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from gradwire_server.database.engine import make_engine
from gradwire_server.database.schema import alembic_config, head_revision, migrate
from gradwire_server.database.tables import metadata
from gradwire_server.errors import SchemaError
from sqlalchemy import create_engine


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def ddl(path: Path) -> set[str]:
    """Return every CREATE statement in one line, without alembic's own table."""
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name <> 'alembic_version'"
        )
        statements = {" ".join(row[0].replace("\n", " ").split()) for row in rows}
    connection.close()
    return statements


def parts(statement: str) -> tuple[str, ...]:
    """Return a table's parts sorted, since columns and constraints may stand in any order; an index as it is."""
    head, _, body = statement.partition("(")
    is_table = head.startswith("CREATE TABLE")
    return (head.strip(), *sorted(body.strip().removesuffix(")").strip().split(", "))) if is_table else (statement,)


def test_head_is_what_the_tables_say(tmp_path: Path) -> None:
    migrate(url(tmp_path / "migrated.db"))
    engine = create_engine(url(tmp_path / "migrated.db"))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        differences = compare_metadata(context, metadata)
    engine.dispose()
    assert differences == []


def test_head_has_the_same_ddl_as_the_tables(tmp_path: Path) -> None:
    migrate(url(tmp_path / "migrated.db"))
    engine = create_engine(url(tmp_path / "created.db"))
    metadata.create_all(engine)
    engine.dispose()
    migrated = {parts(statement) for statement in ddl(tmp_path / "migrated.db")}
    created = {parts(statement) for statement in ddl(tmp_path / "created.db")}
    assert migrated == created


def test_newer_schema_is_refused_and_left_untouched(tmp_path: Path) -> None:
    path = tmp_path / "newer.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        connection.execute("INSERT INTO alembic_version VALUES ('9999')")
    connection.close()
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(SchemaError, match=f"9999.*{head_revision()}"):
        migrate(url(path))
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
    assert [found.name for found in tmp_path.iterdir()] == ["newer.db"]


def test_second_migration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    migrate(url(path))
    before = ddl(path)
    migrate(url(path))
    assert ddl(path) == before


def _migrate_at(gate: "multiprocessing.synchronize.Barrier", path: Path) -> None:
    gate.wait(30)
    migrate(url(path))


def test_four_processes_may_migrate_at_once(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(4)
    processes = [context.Process(target=_migrate_at, args=(gate, path)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(90)
    assert [process.exitcode for process in processes] == [0] * 4
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(head_revision(),)]
    connection.close()


def test_migration_that_fails_half_way_leaves_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    with sqlite3.connect(path) as connection:
        # The last table that the first migration makes is in the way.
        connection.execute("CREATE TABLE tokens (x INTEGER)")
    connection.close()
    with pytest.raises(Exception, match="already exists"):
        migrate(url(path))
    assert ddl(path) == {"CREATE TABLE tokens (x INTEGER)"}


def test_downgrade_takes_everything_back(tmp_path: Path) -> None:
    path = tmp_path / "some.db"
    migrate(url(path))
    engine = make_engine(url(path), is_writer=True)
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.downgrade(config, "base")
    engine.dispose()
    assert ddl(path) == set()
