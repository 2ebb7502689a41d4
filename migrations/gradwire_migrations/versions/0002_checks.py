"""Which steps were uncompressed only to compare with."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Mark the steps of check windows, none of the old ones."""
    op.add_column("step_windows", sa.Column("is_check", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(
        "ix_step_windows_check",
        "step_windows",
        ["run", "model", "level", "first_step"],
        sqlite_where=sa.text("is_check = 1"),
        postgresql_where=sa.text("is_check"),
    )


def downgrade() -> None:
    """Forget which steps they were."""
    op.drop_index("ix_step_windows_check", "step_windows")
    op.drop_column("step_windows", "is_check")
