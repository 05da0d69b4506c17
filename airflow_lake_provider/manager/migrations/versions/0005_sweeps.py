"""Remember what people were told, and when a table was examined, beyond one process.

Revision ID: 0005_sweeps
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005_sweeps"
down_revision = "0004_sinks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lake_table", sa.Column("examined_ms", sa.BigInteger, nullable=True))
    op.create_table(
        "lake_report",
        sa.Column("report_id", sa.String(64), primary_key=True),
        sa.Column("claim_until_ms", sa.BigInteger, nullable=False),
        sa.Column("told_ms", sa.BigInteger, nullable=True),
    )


def downgrade() -> None:
    op.drop_table("lake_report")
    with op.batch_alter_table("lake_table") as table:
        table.drop_column("examined_ms")
