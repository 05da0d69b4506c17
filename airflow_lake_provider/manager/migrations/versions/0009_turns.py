"""Keep the last run of each service and what became of it: archiving and runs that find nothing leave no other trace.

Revision ID: 0009_turns
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009_turns"
down_revision = "0008_identity"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lake_table", sa.Column("turns", sa.Text, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("lake_table") as table:
        table.drop_column("turns")
