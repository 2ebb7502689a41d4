"""How far the values of single ranks lie from a mean over ranks, and what the mean counts."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

COLUMNS = ("low", "high", "weight")


def upgrade() -> None:
    """Add the columns; of old values they are unknown."""
    for name in COLUMNS:
        op.add_column("points", sa.Column(name, sa.Double()))


def downgrade() -> None:
    """Forget them."""
    for name in reversed(COLUMNS):
        op.drop_column("points", name)
