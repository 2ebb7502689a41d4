"""The first schema: runs, their streams, directives, access and audit."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# SQLite gives row ids only to INTEGER PRIMARY KEY.
row_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create all tables."""
    _create_runs()
    _create_streams()
    _create_windows()
    _create_points_and_events()
    _create_directives()
    _create_access()


def downgrade() -> None:
    """Drop all tables."""
    op.drop_table("nodes")
    op.drop_table("tokens")
    op.drop_table("models")
    op.drop_table("events")
    op.drop_table("directives")
    op.drop_table("attempts")
    op.drop_table("users")
    op.drop_table("step_windows")
    op.drop_table("runs")
    op.drop_table("points")
    op.drop_table("audit")


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("project", sa.String(200), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("final_status", sa.String(20)),
        sa.Column("status_detail", sa.Text(), nullable=False, server_default=""),
        sa.Column("current_attempt", sa.String(36)),
        sa.Column("last_event", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("baseline_run", sa.String(36)),
        sa.PrimaryKeyConstraint("id", name="pk_runs"),
    )
    op.create_table(
        "attempts",
        sa.Column("id", sa.String(36), nullable=False),
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("status", sa.String(20)),
        sa.Column("world_size", sa.Integer(), nullable=False),
        sa.Column("start_step", sa.BigInteger(), nullable=False),
        sa.Column("total_steps", sa.BigInteger()),
        sa.Column("total_tokens", sa.BigInteger()),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_attempts_run_runs"),
        sa.PrimaryKeyConstraint("id", name="pk_attempts"),
        sa.UniqueConstraint("run", "number", name="uq_attempts_run_number"),
    )


def _create_streams() -> None:
    op.create_table(
        "models",
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("since_step", sa.BigInteger(), nullable=False),
        sa.Column("num_ranks_confirmed", sa.Integer(), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_models_run_runs"),
        sa.PrimaryKeyConstraint("run", "name", name="pk_models"),
    )
    op.create_table(
        "nodes",
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("host", sa.String(200), nullable=False),
        sa.Column("ranks", sa.JSON(), nullable=False),
        sa.Column("cursor", sa.BigInteger(), nullable=False),
        sa.Column("num_dropped", sa.BigInteger(), nullable=False),
        sa.Column("last_seen_at", sa.Double(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("ended_status", sa.String(20)),
        sa.ForeignKeyConstraint(["attempt"], ["attempts.id"], name="fk_nodes_attempt_attempts"),
        sa.PrimaryKeyConstraint("attempt", "model", "node", name="pk_nodes"),
    )


def _create_windows() -> None:
    op.create_table(
        "step_windows",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("first_step", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=False),
        sa.Column("num_windows", sa.BigInteger(), nullable=False),
        sa.Column("num_steps", sa.BigInteger(), nullable=False),
        sa.Column("num_rank_steps", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.String(40), nullable=False),
        sa.Column("is_settling", sa.Boolean(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("received_at", sa.Double(), nullable=False),
        sa.Column("wall_seconds", sa.Double(), nullable=False),
        sa.Column("step_seconds", sa.Double(), nullable=False),
        sa.Column("data_wait_seconds", sa.Double(), nullable=False),
        sa.Column("forward_seconds", sa.Double(), nullable=False),
        sa.Column("backward_seconds", sa.Double(), nullable=False),
        sa.Column("exposed_communication_seconds", sa.Double(), nullable=False),
        sa.Column("exposed_transfer_seconds", sa.Double()),
        sa.Column("straggler_wait_seconds", sa.Double()),
        sa.Column("exposed_codec_seconds", sa.Double(), nullable=False),
        sa.Column("optimizer_seconds", sa.Double(), nullable=False),
        sa.Column("pause_seconds", sa.Double(), nullable=False),
        sa.Column("other_seconds", sa.Double(), nullable=False),
        sa.Column("overlapped_seconds", sa.Double(), nullable=False),
        sa.Column("encode_seconds", sa.Double(), nullable=False),
        sa.Column("decode_seconds", sa.Double(), nullable=False),
        sa.Column("agent_seconds", sa.Double(), nullable=False),
        sa.Column("unknown_reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("step_seconds_min", sa.Double(), nullable=False),
        sa.Column("step_seconds_max", sa.Double(), nullable=False),
        sa.Column("logical_bytes", sa.BigInteger(), nullable=False),
        sa.Column("wire_bytes", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("ranks", sa.JSON()),
        sa.PrimaryKeyConstraint("id", name="pk_step_windows"),
    )
    op.create_index(
        "ix_step_windows_run_model_level_first_step_node",
        "step_windows",
        ["run", "model", "level", "first_step", "node"],
    )


def _create_points_and_events() -> None:
    op.create_table(
        "points",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("kind", sa.String(4)),
        sa.Column("is_evaluation", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_points"),
    )
    # Non-finite values are few, and every page counts them.
    is_nonfinite = sa.text("kind IS NOT NULL")
    op.create_index(
        "ix_points_nonfinite",
        "points",
        ["run", "model", "kind"],
        sqlite_where=is_nonfinite,
        postgresql_where=is_nonfinite,
    )
    op.create_index("ix_points_run_model_name_attempt_step", "points", ["run", "model", "name", "attempt", "step"])
    op.create_table(
        "events",
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("agent_at", sa.Double()),
        sa.Column("attempt", sa.String(36)),
        sa.Column("model", sa.String(200)),
        sa.Column("step", sa.BigInteger()),
        sa.Column("rank", sa.Integer()),
        sa.Column("kind", sa.String(40), nullable=False),
        sa.Column("level", sa.String(10), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_events_run_runs"),
        sa.PrimaryKeyConstraint("run", "number", name="pk_events"),
    )


def _create_directives() -> None:
    op.create_table(
        "directives",
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("author", sa.String(200), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("requested_at", sa.Double(), nullable=False),
        sa.Column("delivered_at", sa.Double()),
        sa.Column("answered_at", sa.Double()),
        sa.Column("applied_step", sa.BigInteger()),
        sa.Column("num_ranks_confirmed", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("refusals", sa.JSON()),
        sa.ForeignKeyConstraint(["run"], ["runs.id"], name="fk_directives_run_runs"),
        sa.PrimaryKeyConstraint("run", "model", "revision", name="pk_directives"),
    )


def _create_access() -> None:
    op.create_table(
        "users",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_users"),
        sa.UniqueConstraint("name", name="uq_users_name"),
    )
    op.create_table(
        "tokens",
        sa.Column("hash", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("user", sa.BigInteger()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double()),
        sa.Column("used_at", sa.Double()),
        sa.ForeignKeyConstraint(["user"], ["users.id"], name="fk_tokens_user_users"),
        sa.PrimaryKeyConstraint("hash", name="pk_tokens"),
    )
    op.create_table(
        "audit",
        sa.Column("id", row_id, autoincrement=True, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("run", sa.String(36)),
        sa.Column("before", sa.JSON()),
        sa.Column("after", sa.JSON()),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
