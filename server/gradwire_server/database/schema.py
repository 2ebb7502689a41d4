"""The schema's revision: brought up to date at start, refused when it is newer than this program."""

from pathlib import Path

import gradwire_migrations
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.engine import make_url

from gradwire_server.database.engine import make_engine
from gradwire_server.errors import SchemaError


def alembic_config() -> Config:
    """Return Alembic's configuration; it lives in code because the path depends on the installation."""
    config = Config()
    # Alembic interpolates percent signs.
    config.set_main_option("script_location", str(Path(gradwire_migrations.__file__).parent).replace("%", "%%"))
    return config


def head_revision() -> str:
    """Return the newest revision that this program knows."""
    head = ScriptDirectory.from_config(alembic_config()).get_current_head()
    assert head is not None
    return head


def stored_revision(connection: Connection) -> str | None:
    """Return the database's revision, or None when it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()


def migrate(url: str) -> None:
    """Create the database or bring it up to date, in one transaction.

    Two programs that start at once are serialised by the write lock: the second finds nothing to do.

    Raises:
        SchemaError: The database was written by a newer program; it is left untouched.
    """
    _refuse_unknown_revision(url)
    engine = make_engine(url, is_writer=True)
    try:
        with engine.begin() as connection:
            config = alembic_config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    finally:
        engine.dispose()


def _refuse_unknown_revision(url: str) -> None:
    engine = _untouching_engine(url)
    if engine is None:
        return
    try:
        with engine.connect() as connection:
            revision = stored_revision(connection)
    finally:
        engine.dispose()
    known = {script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise SchemaError(
            f"the database {make_url(url).render_as_string(hide_password=True)} has revision {revision}, "
            f"which is newer than {head_revision()}, the newest that this version of Gradwire knows; "
            "install the version that wrote it, or use another database"
        )


def _untouching_engine(url: str) -> Engine | None:
    """Return an engine that does not even switch the journal mode, or None when there is no database yet."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite":
        return make_engine(url, is_writer=False)
    if not parsed.database or not Path(parsed.database).exists():
        return None
    return make_engine(url, is_writer=False)
