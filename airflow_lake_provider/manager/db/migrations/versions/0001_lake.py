"""Create the registry: tables, leases, limits, sinks, and what people were notified of.

Revision ID: 0001_lake
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001_lake"
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
        sa.Column("identified_ms", sa.BigInteger, nullable=True),
        sa.Column("has_database", sa.Boolean, nullable=False, server_default=sa.false()),
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
        sa.Column("holes", sa.Integer, nullable=False),
        sa.Column("turns", sa.Text, nullable=True),
        sa.Column("examined_ms", sa.BigInteger, nullable=True),
    )
    op.create_index("idx_lake_table_dirty", "lake_table", ["dirty_since_ms"])
    op.create_index("idx_lake_table_identified", "lake_table", ["identified_ms"])
    op.create_index("idx_lake_table_last_notice", "lake_table", ["last_notice_ms"])
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
    op.create_table(
        "lake_limit",
        sa.Column("name", sa.String(300), primary_key=True),
        sa.Column("held_ms", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "lake_sink",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("sink", sa.String(80), primary_key=True),
        sa.Column("is_configured", sa.Boolean, nullable=False),
        sa.Column("retire_ms", sa.BigInteger, nullable=True),
        sa.Column("hold", sa.String(40), nullable=False),
        sa.Column("ttl_s", sa.BigInteger, nullable=False),
        sa.Column("renewed_ms", sa.BigInteger, nullable=False),
        sa.Column("needs_snapshot", sa.Boolean, nullable=False),
        sa.Column("paused", sa.Boolean, nullable=False),
        sa.Column("checkpoint", sa.Text, nullable=False),
        sa.Column("completed_time", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False, server_default=""),
        sa.Column("running_until_ms", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("retry_ms", sa.BigInteger, nullable=False),
        sa.Column("problem", sa.Text, nullable=False),
    )
    op.create_table(
        "lake_report",
        sa.Column("report_id", sa.String(64), primary_key=True),
        sa.Column("claim_until_ms", sa.BigInteger, nullable=False),
        sa.Column("told_ms", sa.BigInteger, nullable=True),
    )


def downgrade() -> None:
    op.drop_table("lake_report")
    op.drop_table("lake_sink")
    op.drop_table("lake_limit")
    op.drop_table("lake_executor")
    op.drop_table("lake_table")
