"""What a node's machine did last."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the newest record of a node's machine."""
    op.add_column("nodes", sa.Column("host_window", sa.JSON()))


def downgrade() -> None:
    """Take it away again."""
    op.drop_column("nodes", "host_window")
