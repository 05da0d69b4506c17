"""Create the rows that are locked while the runs of a pool or queue are counted.

Revision ID: 0003_limits
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003_limits"
down_revision = "0002_notice_index"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lake_limit",
        sa.Column("name", sa.String(300), primary_key=True),
        sa.Column("held_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("lake_limit")
