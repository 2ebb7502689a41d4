"""Alembic's environment: runs on the connection that the service hands over, inside its transaction."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    # SQLite rolls DDL back too, so a migration that fails half-way leaves no trace.
    transactional_ddl=True,
    # Lets later migrations alter tables on SQLite, which can hardly alter them itself.
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
