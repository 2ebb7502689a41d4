"""Which steps were uncompressed only to compare with, and what was found on samples of gradients."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Mark the steps of check windows, none of the old ones, and make room for samples."""
    op.add_column("step_windows", sa.Column("is_check", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(
        "ix_step_windows_check",
        "step_windows",
        ["run", "model", "level", "first_step"],
        sqlite_where=sa.text("is_check = 1"),
        postgresql_where=sa.text("is_check"),
    )
    op.create_table(
        "matches",
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("codec", sa.String(40), nullable=False),
        sa.Column("cosine", sa.Double(), nullable=False),
        sa.Column("relative_error", sa.Double(), nullable=False),
        sa.Column("worst_parameter", sa.Text(), nullable=False),
        sa.Column("worst_cosine", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run", "model", name="pk_matches"),
    )
    op.create_table(
        "rehearsals",
        sa.Column("run", sa.String(36), nullable=False),
        sa.Column("model", sa.String(200), nullable=False),
        sa.Column("codec", sa.String(40), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.String(36), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("cosine", sa.Double(), nullable=False),
        sa.Column("relative_error", sa.Double(), nullable=False),
        sa.Column("encode_seconds", sa.Double(), nullable=False),
        sa.Column("decode_seconds", sa.Double(), nullable=False),
        sa.Column("num_elements", sa.BigInteger(), nullable=False),
        sa.Column("model_elements", sa.BigInteger(), nullable=False),
        sa.Column("norm_shares", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("run", "model", "codec", "bucket", name="pk_rehearsals"),
    )


def downgrade() -> None:
    """Forget which steps they were, and the samples."""
    op.drop_table("rehearsals")
    op.drop_table("matches")
    op.drop_index("ix_step_windows_check", "step_windows")
    op.drop_column("step_windows", "is_check")
