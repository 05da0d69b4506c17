"""Create the table of replication's sinks with their holds.

Revision ID: 0004_sinks
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004_sinks"
down_revision = "0003_limits"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lake_sink",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("sink", sa.String(80), primary_key=True),
        sa.Column("is_configured", sa.Boolean, nullable=False),
        sa.Column("hold", sa.String(40), nullable=False),
        sa.Column("ttl_s", sa.BigInteger, nullable=False),
        sa.Column("renewed_ms", sa.BigInteger, nullable=False),
        sa.Column("needs_snapshot", sa.Boolean, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("completed_time", sa.String(40), nullable=False),
        sa.Column("running_until_ms", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("retry_ms", sa.BigInteger, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("lake_sink")
