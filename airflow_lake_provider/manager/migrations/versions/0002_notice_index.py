"""Index the time of the last notice: timeline servers ask each second what was marked since.

Revision ID: 0002_notice_index
"""

from __future__ import annotations

from alembic import op

revision = "0002_notice_index"
down_revision = "0001_registry"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("idx_lake_table_last_notice", "lake_table", ["last_notice_ms"])


def downgrade() -> None:
    op.drop_index("idx_lake_table_last_notice", table_name="lake_table")
