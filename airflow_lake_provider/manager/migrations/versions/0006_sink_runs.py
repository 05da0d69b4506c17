"""Say which run has a sink, so that two do not begin at once.

Revision ID: 0006_sink_runs
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006_sink_runs"
down_revision = "0005_sweeps"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("lake_sink", sa.Column("run_id", sa.String(250), nullable=False, server_default=""))


def downgrade() -> None:
    with op.batch_alter_table("lake_sink") as table:
        table.drop_column("run_id")
