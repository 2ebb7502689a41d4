"""All tables of the service; migrations spell out the same DDL and a test compares the two.

Times are Unix seconds in UTC as double precision, taken at the server; `agent_at` is the agent's own clock.
Steps, tokens, bytes and counts are BIGINT. A model is part of a run: one attached `torch` module by name.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# SQLite gives row ids only to INTEGER PRIMARY KEY.
RowId = BigInteger().with_variant(Integer, "sqlite")

runs = Table(
    "runs",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("project", String(200), nullable=False),
    Column("name", String(200), nullable=False),
    Column("created_at", Double, nullable=False),
    # Server receipt of the newest batch of any node.
    Column("last_seen_at", Double, nullable=False),
    # Heartbeats decide between running, silent and lost; a stored status is final: finished, failed, interrupted.
    Column("final_status", String(20)),
    Column("status_detail", Text, nullable=False, server_default=""),
    Column("current_attempt", String(36)),
    # Events are numbered per run under this row's lock; the number is the SSE id.
    Column("last_event", BigInteger, nullable=False, server_default="0"),
    Column("baseline_run", String(36)),
)

attempts = Table(
    "attempts",
    metadata,
    Column("id", String(36), primary_key=True),
    Column("run", String(36), ForeignKey("runs.id"), nullable=False),
    # 1, 2, ... by first receipt within the run.
    Column("number", Integer, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("status", String(20)),
    Column("world_size", Integer, nullable=False),
    Column("start_step", BigInteger, nullable=False),
    Column("total_steps", BigInteger),
    Column("total_tokens", BigInteger),
    # The AttemptStarted record of the first node, whole.
    Column("facts", JSON, nullable=False),
    UniqueConstraint("run", "number"),
)

# What a model of a run does with its gradients now, and the directive that is open for it.
models = Table(
    "models",
    metadata,
    Column("run", String(36), ForeignKey("runs.id"), primary_key=True),
    Column("name", String(200), primary_key=True),
    Column("attempt", String(36), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("plan", JSON, nullable=False),
    Column("since_step", BigInteger, nullable=False),
    Column("num_ranks_confirmed", Integer, nullable=False),
    # The AttemptStarted record of this model's first node in the current attempt, whole.
    Column("facts", JSON, nullable=False),
)

nodes = Table(
    "nodes",
    metadata,
    Column("attempt", String(36), ForeignKey("attempts.id"), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("node", Integer, primary_key=True),
    Column("host", String(200), nullable=False),
    Column("ranks", JSON, nullable=False),
    # The stream's cursor: every batch up to this number is stored.
    Column("cursor", BigInteger, nullable=False),
    Column("num_dropped", BigInteger, nullable=False),
    Column("last_seen_at", Double, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("ended_status", String(20)),
    # The node's newest HostWindow record, whole; null before the first one.
    Column("host_window", JSON),
)

# Level 0 is a window as the agent sent it, level 1 sums of an aligned range of steps, level 2 of a whole stretch
# between two switches; see `series.rollup`.
step_windows = Table(
    "step_windows",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("run", String(36), nullable=False),
    Column("attempt", String(36), nullable=False),
    Column("model", String(200), nullable=False),
    Column("node", Integer, nullable=False),
    Column("level", Integer, nullable=False),
    Column("first_step", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    Column("num_windows", BigInteger, nullable=False),
    Column("num_steps", BigInteger, nullable=False),
    Column("num_rank_steps", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("codec", String(40), nullable=False),
    Column("is_settling", Boolean, nullable=False),
    Column("started_at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("wall_seconds", Double, nullable=False),
    Column("step_seconds", Double, nullable=False),
    Column("data_wait_seconds", Double, nullable=False),
    Column("forward_seconds", Double, nullable=False),
    Column("backward_seconds", Double, nullable=False),
    Column("exposed_communication_seconds", Double, nullable=False),
    Column("exposed_transfer_seconds", Double),
    Column("straggler_wait_seconds", Double),
    Column("exposed_codec_seconds", Double, nullable=False),
    Column("optimizer_seconds", Double, nullable=False),
    Column("pause_seconds", Double, nullable=False),
    Column("other_seconds", Double, nullable=False),
    Column("overlapped_seconds", Double, nullable=False),
    Column("encode_seconds", Double, nullable=False),
    Column("decode_seconds", Double, nullable=False),
    Column("agent_seconds", Double, nullable=False),
    Column("unknown_reason", Text, nullable=False, server_default=""),
    Column("step_seconds_min", Double, nullable=False),
    Column("step_seconds_max", Double, nullable=False),
    Column("logical_bytes", BigInteger, nullable=False),
    Column("wire_bytes", BigInteger, nullable=False),
    Column("samples", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("ranks", JSON),
    Column("is_check", Boolean, nullable=False, server_default=false()),
    # The node stands in the index so that the rollup finds its row without reading the other nodes' rows.
    Index(None, "run", "model", "level", "first_step", "node"),
    # Check windows are few and asked for on every page.
    Index(
        "ix_step_windows_check",
        "run",
        "model",
        "level",
        "first_step",
        sqlite_where=text("is_check = 1"),
        postgresql_where=text("is_check"),
    ),
)

points = Table(
    "points",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("run", String(36), nullable=False),
    Column("attempt", String(36), nullable=False),
    Column("model", String(200), nullable=False),
    Column("node", Integer, nullable=False),
    Column("name", String(200), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("value", Double),
    # Null for finite values, else "nan", "+inf" or "-inf".
    Column("kind", String(4)),
    Column("is_evaluation", Boolean, nullable=False),
    # Of a mean over ranks: the smallest and largest finite value of one, and what it counts beside other nodes'.
    Column("low", Double),
    Column("high", Double),
    Column("weight", Double),
    # Attempts are read one by one, since a resumed run is a branch that leaves the older attempt at some step.
    Index(None, "run", "model", "name", "attempt", "step"),
    # Non-finite values are rare and counted on every page.
    Index(
        "ix_points_nonfinite",
        "run",
        "model",
        "kind",
        sqlite_where=text("kind IS NOT NULL"),
        postgresql_where=text("kind IS NOT NULL"),
    ),
)

# The newest sample of how close decoded gradients come to exact ones; all of them are `points`.
matches = Table(
    "matches",
    metadata,
    Column("run", String(36), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("attempt", String(36), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("codec", String(40), nullable=False),
    Column("cosine", Double, nullable=False),
    Column("relative_error", Double, nullable=False),
    Column("worst_parameter", Text, nullable=False),
    Column("worst_cosine", Double, nullable=False),
)

# What each codec would make of each bucket of a model, tried last.
rehearsals = Table(
    "rehearsals",
    metadata,
    Column("run", String(36), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("codec", String(40), primary_key=True),
    Column("bucket", BigInteger, primary_key=True),
    Column("attempt", String(36), nullable=False),
    Column("step", BigInteger, nullable=False),
    Column("cosine", Double, nullable=False),
    Column("relative_error", Double, nullable=False),
    Column("encode_seconds", Double, nullable=False),
    Column("decode_seconds", Double, nullable=False),
    Column("num_elements", BigInteger, nullable=False),
    Column("model_elements", BigInteger, nullable=False),
    # Shares of the norm that the largest 1, 5 and 25 % of the elements have.
    Column("norm_shares", JSON, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("run", String(36), ForeignKey("runs.id"), primary_key=True),
    Column("number", BigInteger, primary_key=True),
    Column("at", Double, nullable=False),
    Column("agent_at", Double),
    Column("attempt", String(36)),
    Column("model", String(200)),
    Column("step", BigInteger),
    Column("rank", Integer),
    # The agent's kinds, and "requested", "delivered", "switched", "refused", "superseded", "expired", "baseline",
    # "attempt_started", "attempt_ended".
    Column("kind", String(40), nullable=False),
    Column("level", String(10), nullable=False),
    Column("message", Text, nullable=False),
    Column("data", JSON, nullable=False),
)

directives = Table(
    "directives",
    metadata,
    Column("run", String(36), ForeignKey("runs.id"), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("revision", BigInteger, primary_key=True),
    Column("attempt", String(36), nullable=False),
    Column("kind", String(20), nullable=False),
    Column("plan", JSON, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("author", String(200), nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
    # "requested", "delivered", "applied", "rejected", "superseded", "expired"
    Column("state", String(20), nullable=False),
    Column("requested_at", Double, nullable=False),
    Column("delivered_at", Double),
    Column("answered_at", Double),
    Column("applied_step", BigInteger),
    Column("num_ranks_confirmed", Integer, nullable=False, server_default="0"),
    Column("refusals", JSON),
)

# One operator in this version; roles and personal links come later.
users = Table(
    "users",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("name", String(200), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("created_at", Double, nullable=False),
)

# Login links, sessions and bearer tokens; only SHA-256 hashes of the secrets are stored.
tokens = Table(
    "tokens",
    metadata,
    Column("hash", String(64), primary_key=True),
    # "login", "session", "ingest", "operator", "read"
    Column("kind", String(20), nullable=False),
    Column("name", String(200), nullable=False),
    Column("user", BigInteger, ForeignKey("users.id")),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("used_at", Double),
)

audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(40), nullable=False),
    Column("run", String(36)),
    Column("before", JSON),
    Column("after", JSON),
    Column("reason", Text, nullable=False, server_default=""),
)
