"""Keep how many holes each table's last look saw, so that the gauge is one number whichever server looked.

Revision ID: 0007_holes
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007_holes"
down_revision = "0006_sink_runs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lake_table", sa.Column("holes", sa.Integer, nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("lake_table") as table:
        table.drop_column("holes")
