"""Keep whether a table's name comes from its properties, and when a sink that is no longer configured is forgotten.

Revision ID: 0008_identity
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008_identity"
down_revision = "0007_holes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Names that are there were announced; the manager's next pass reads the properties of each table.
    op.add_column("lake_table", sa.Column("identified_ms", sa.BigInteger, nullable=True))
    op.add_column("lake_table", sa.Column("has_database", sa.Boolean, nullable=False, server_default=sa.false()))
    op.create_index("idx_lake_table_identified", "lake_table", ["identified_ms"])
    op.add_column("lake_sink", sa.Column("retire_ms", sa.BigInteger, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("lake_sink") as table:
        table.drop_column("retire_ms")
    op.drop_index("idx_lake_table_identified", "lake_table")
    with op.batch_alter_table("lake_table") as table:
        table.drop_column("has_database")
        table.drop_column("identified_ms")
