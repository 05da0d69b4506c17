"""Create the table registry and the executor leases.

Revision ID: 0001_registry
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_registry"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "lake_table",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("base_path", sa.Text, nullable=False),
        sa.Column("table_name", sa.String(500), nullable=False),
        sa.Column("database_name", sa.String(500), nullable=False),
        sa.Column("owner", sa.String(500), nullable=False),
        sa.Column("registered_ms", sa.BigInteger, nullable=False),
        sa.Column("dirty_seq", sa.BigInteger, nullable=False),
        sa.Column("dirty_since_ms", sa.BigInteger, nullable=True),
        sa.Column("notices", sa.BigInteger, nullable=False),
        sa.Column("last_notice_ms", sa.BigInteger, nullable=True),
        sa.Column("last_notice_source", sa.String(40), nullable=False),
        sa.Column("last_notice_instant", sa.String(40), nullable=False),
        sa.Column("claim_token", sa.String(40), nullable=True),
        sa.Column("claim_until_ms", sa.BigInteger, nullable=False),
        sa.Column("looked_ms", sa.BigInteger, nullable=True),
        sa.Column("look_failures", sa.Integer, nullable=False),
        sa.Column("next_look_ms", sa.BigInteger, nullable=True),
        sa.Column("retry_ms", sa.BigInteger, nullable=True),
        sa.Column("completed_time", sa.String(40), nullable=False),
        sa.Column("view_version", sa.String(80), nullable=False),
        sa.Column("decisions", sa.Text, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
    )
    op.create_index("idx_lake_table_dirty", "lake_table", ["dirty_since_ms"])
    op.create_index("idx_lake_table_next_look", "lake_table", ["next_look_ms"])
    op.create_index("idx_lake_table_retry", "lake_table", ["retry_ms"])
    op.create_table(
        "lake_executor",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("service", sa.String(40), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("acquired_ms", sa.BigInteger, nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    op.drop_table("lake_executor")
    op.drop_table("lake_table")
