"""Create the registry: tables, leases, limits, sinks, and what people were notified of.

Revision ID: 0001_lake
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001_lake"
down_revision = None
branch_labels = None
depends_on = None

LONG_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
BINARY: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}
"""Of MySQL's tables, for which texts that differ by case or accents alone are one text otherwise."""


def upgrade() -> None:
    _create_table(
        "lake_table",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("base_path", LONG_TEXT, nullable=False),
        sa.Column("table_name", sa.String(500), nullable=False),
        sa.Column("database_name", sa.String(500), nullable=False),
        sa.Column("owner", sa.String(500), nullable=False),
        sa.Column("identified_ms", sa.BigInteger, nullable=True),
        sa.Column("has_database", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("is_only_discovered", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("registered_ms", sa.BigInteger, nullable=False),
        sa.Column("dirty_seq", sa.BigInteger, nullable=False),
        sa.Column("dirty_since_ms", sa.BigInteger, nullable=True),
        sa.Column("notices", sa.BigInteger, nullable=False),
        sa.Column("last_notice_ms", sa.BigInteger, nullable=True),
        sa.Column("last_notice_source", sa.String(40), nullable=False),
        sa.Column("last_notice_instant", sa.String(40), nullable=False),
        sa.Column("claim_token", sa.String(40), nullable=True),
        sa.Column("claim_until_ms", sa.BigInteger, nullable=False),
        sa.Column("evaluated_ms", sa.BigInteger, nullable=True),
        sa.Column("evaluation_failures", sa.Integer, nullable=False),
        sa.Column("next_evaluation_ms", sa.BigInteger, nullable=True),
        sa.Column("retry_ms", sa.BigInteger, nullable=True),
        sa.Column("completed_time", sa.String(40), nullable=False),
        sa.Column("changed_time", sa.String(40), nullable=False, server_default=""),
        sa.Column("last_commit_ms", sa.BigInteger, nullable=True),
        sa.Column("view_version", sa.String(80), nullable=False),
        sa.Column("decisions", LONG_TEXT, nullable=False),
        sa.Column("problem", LONG_TEXT, nullable=False),
        sa.Column("missing_since_ms", sa.BigInteger, nullable=True),
        sa.Column("holes", sa.Integer, nullable=False),
        sa.Column("last_runs", LONG_TEXT, nullable=True),
        sa.Column("real_id", sa.String(80), nullable=True),
        sa.Column("examined_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("announced", sa.String(1000), nullable=False, server_default=""),
        sa.Column("served", sa.String(1000), nullable=False, server_default=""),
        sa.Column("conformance", LONG_TEXT, nullable=True),
        sa.Column("health", LONG_TEXT, nullable=True),
        sa.Column("event_cursor", LONG_TEXT, nullable=True),
    )
    op.create_index("idx_lake_table_dirty", "lake_table", ["dirty_since_ms"])
    op.create_index("idx_lake_table_examined", "lake_table", ["examined_ms"])
    op.create_index("idx_lake_table_holes", "lake_table", ["holes"])
    op.create_index("idx_lake_table_identified", "lake_table", ["identified_ms"])
    op.create_index("idx_lake_table_last_notice", "lake_table", ["last_notice_ms"])
    op.create_index("idx_lake_table_missing", "lake_table", ["missing_since_ms"])
    op.create_index("idx_lake_table_name", "lake_table", ["table_name", "table_id"])
    op.create_index("idx_lake_table_next_evaluation", "lake_table", ["next_evaluation_ms"])
    op.create_index("idx_lake_table_real", "lake_table", ["real_id"])
    op.create_index("idx_lake_table_retry", "lake_table", ["retry_ms"])
    _create_table(
        "lake_search",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("table_name", sa.String(500), nullable=False),
        sa.Column("identity", LONG_TEXT, nullable=False),
        sa.Column("search_text", LONG_TEXT, nullable=False),
        sa.Column("database_name", sa.String(500), nullable=False, server_default=""),
        sa.Column("owner", sa.String(500), nullable=False, server_default=""),
        sa.Column("state", sa.String(20), nullable=False, server_default="new"),
        sa.Column("severity", sa.Integer, nullable=False, server_default="10"),
        sa.Column("log_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("base_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("due_since_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("last_commit_ms", sa.BigInteger, nullable=False, server_default=str(1 << 62)),
        sa.Column("files", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("file_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("is_paused", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("is_observed", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("is_held", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("is_snoozed", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.create_index("idx_lake_search_backlog", "lake_search", ["log_bytes", "table_id"])
    op.create_index("idx_lake_search_commit", "lake_search", ["last_commit_ms", "table_id"])
    op.create_index("idx_lake_search_due", "lake_search", ["due_since_ms"])
    op.create_index("idx_lake_search_name", "lake_search", ["table_name", "table_id"])
    op.create_index("idx_lake_search_size", "lake_search", ["file_bytes", "table_id"])
    op.create_index("idx_lake_search_worst", "lake_search", ["severity", "log_bytes", "table_id"])
    _create_table(
        "lake_finding",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("found_by", sa.String(20), primary_key=True),
        sa.Column("kind", sa.String(40), primary_key=True),
        sa.Column("instant", sa.String(250), primary_key=True),
        sa.Column("cause", LONG_TEXT, nullable=False),
        sa.Column("remedy", LONG_TEXT, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
    )
    _create_table(
        "lake_snooze",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("state", sa.String(20), primary_key=True),
        sa.Column("source", sa.String(20), primary_key=True),
        sa.Column("subject", sa.String(300), primary_key=True),
        sa.Column("why", sa.String(500), nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("ends_ms", sa.BigInteger, nullable=False),
    )
    _create_table(
        "lake_executor",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("service", sa.String(40), primary_key=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("acquired_ms", sa.BigInteger, nullable=False),
        sa.Column("lease_until_ms", sa.BigInteger, nullable=False),
    )
    _create_table(
        "lake_limit",
        sa.Column("name", sa.String(300), primary_key=True),
        sa.Column("held_ms", sa.BigInteger, nullable=False),
    )
    _create_table(
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
        sa.Column("checkpoint", LONG_TEXT, nullable=False),
        sa.Column("completed_time", sa.String(40), nullable=False),
        sa.Column("had_all_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("due_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("run_id", sa.String(250), nullable=False, server_default=""),
        sa.Column("running_until_ms", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("retry_ms", sa.BigInteger, nullable=False),
        sa.Column("problem", LONG_TEXT, nullable=False),
    )
    op.create_index("idx_lake_sink_retire", "lake_sink", ["retire_ms"])
    _create_table(
        "lake_sink_event",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("sink", sa.String(80), primary_key=True),
        sa.Column("kind", sa.String(40), primary_key=True),
        sa.Column("at_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("reason", LONG_TEXT, nullable=False),
    )
    op.create_index("idx_lake_sink_event_at", "lake_sink_event", ["at_ms"])
    _create_table(
        "lake_hold",
        sa.Column("hold_id", sa.String(40), primary_key=True),
        sa.Column("table_id", sa.String(80), nullable=False),
        sa.Column("token", sa.String(100), nullable=False),
        sa.Column("reader", sa.String(100), nullable=False),
        sa.Column("reason", sa.String(300), nullable=False),
        sa.Column("hold", sa.String(40), nullable=False),
        sa.Column("at_instant", sa.String(40), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("known_ms", sa.BigInteger, nullable=False),
        sa.Column("is_firm", sa.Boolean, nullable=False),
        sa.Column("ttl_ms", sa.BigInteger, nullable=False),
        sa.Column("ends_ms", sa.BigInteger, nullable=False),
        sa.Column("until_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("idx_lake_hold_table", "lake_hold", ["table_id"])
    _create_table(
        "lake_run",
        sa.Column("run_id", sa.String(250), primary_key=True),
        sa.Column("table_id", sa.String(80), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("service", sa.String(40), nullable=False, server_default=""),
        sa.Column("number", sa.Integer, nullable=False, server_default="0"),
        sa.Column("caused_by", sa.String(40), nullable=False, server_default=""),
        sa.Column("due_ms", sa.BigInteger, nullable=True),
        sa.Column("quote", LONG_TEXT, nullable=True),
        sa.Column("scopes", LONG_TEXT, nullable=True),
        sa.Column("cores", sa.Integer, nullable=False, server_default="1"),
        sa.Column("charged_core_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("charged_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("started_ms", sa.BigInteger, nullable=True),
        sa.Column("ended_ms", sa.BigInteger, nullable=True),
        sa.Column("outcome", sa.String(40), nullable=False, server_default=""),
        sa.Column("reported_try", sa.Integer, nullable=False, server_default="0"),
        sa.Column("job_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("files_in", sa.BigInteger, nullable=True),
        sa.Column("bytes_in", sa.BigInteger, nullable=True),
        sa.Column("files_out", sa.BigInteger, nullable=True),
        sa.Column("bytes_out", sa.BigInteger, nullable=True),
        sa.Column("error", LONG_TEXT, nullable=True),
    )
    op.create_index("idx_lake_run_created", "lake_run", ["created_ms", "run_id"])
    op.create_index("idx_lake_run_ended", "lake_run", ["service", "ended_ms"])
    op.create_index("idx_lake_run_table", "lake_run", ["table_id", "created_ms"])
    _create_table(
        "lake_waiting",
        sa.Column("scope", sa.String(300), primary_key=True),
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("service", sa.String(40), primary_key=True),
        sa.Column("rank_ms", sa.BigInteger, nullable=False),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
        sa.Column("core_ms", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("short_of", sa.String(300), nullable=False, server_default=""),
        sa.Column("reason", LONG_TEXT, nullable=False),
        sa.Column("quote", LONG_TEXT, nullable=False),
    )
    op.create_index("idx_lake_waiting_rank", "lake_waiting", ["scope", "rank_ms"])
    op.create_index("idx_lake_waiting_table", "lake_waiting", ["table_id"])
    _create_table(
        "lake_spent",
        sa.Column("scope", sa.String(300), primary_key=True),
        sa.Column("hour_ms", sa.BigInteger, primary_key=True),
        sa.Column("core_ms", sa.BigInteger, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("arrived_core_ms", sa.BigInteger, nullable=False),
        sa.Column("arrived_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("idx_lake_spent_hour", "lake_spent", ["hour_ms"])
    _create_table(
        "lake_bill",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("service", sa.String(40), primary_key=True),
        sa.Column("day_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("label", sa.String(500), nullable=False),
        sa.Column("runs", sa.BigInteger, nullable=False),
        sa.Column("failed_tries", sa.BigInteger, nullable=False),
        sa.Column("core_ms", sa.BigInteger, nullable=False),
        sa.Column("bytes_out", sa.BigInteger, nullable=False),
        sa.Column("files_in", sa.BigInteger, nullable=False),
        sa.Column("files_out", sa.BigInteger, nullable=False),
        sa.Column("expected_core_ms", sa.BigInteger, nullable=False),
        sa.Column("expected_bytes", sa.BigInteger, nullable=False),
    )
    op.create_index("idx_lake_bill_day", "lake_bill", ["day_ms"])
    _create_table(
        "lake_history",
        sa.Column("table_id", sa.String(80), primary_key=True),
        sa.Column("service", sa.String(40), primary_key=True),
        sa.Column("from_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("until_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("situation", sa.String(40), nullable=False),
        sa.Column("due_ms", sa.BigInteger, nullable=True),
        sa.Column("reason", LONG_TEXT, nullable=False),
    )
    op.create_index("idx_lake_history_until", "lake_history", ["until_ms"])
    op.create_index("idx_lake_history_table", "lake_history", ["table_id", "until_ms"])
    _create_table(
        "lake_backlog",
        sa.Column("time_ms", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("log_bytes", sa.BigInteger, nullable=False),
        sa.Column("waiting", sa.BigInteger, nullable=False),
        sa.Column("core_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_runs", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("ended_failed_tries", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("ended_core_ms", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("ended_bytes", sa.BigInteger, nullable=False, server_default="0"),
    )
    _create_table(
        "lake_report",
        sa.Column("report_id", sa.String(64), primary_key=True),
        sa.Column("claim_until_ms", sa.BigInteger, nullable=False),
        sa.Column("notified_ms", sa.BigInteger, nullable=True),
        sa.Column("open_key", sa.String(64), nullable=True),
        sa.Column("problem", LONG_TEXT, nullable=True),
    )
    op.create_index("idx_lake_report_open", "lake_report", ["open_key"])
    _create_table(
        "lake_work",
        sa.Column("item_id", sa.String(64), primary_key=True),
        sa.Column("app_key", sa.String(80), nullable=False),
        sa.Column("table_id", sa.String(80), nullable=False),
        sa.Column("service", sa.String(40), nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("try_number", sa.Integer, nullable=False),
        sa.Column("request", LONG_TEXT, nullable=False),
        sa.Column("timeout_ms", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("is_cancelled", sa.Boolean, nullable=False),
        sa.Column("claim_token", sa.String(40), nullable=False),
        sa.Column("deaths", sa.Integer, nullable=False),
        sa.Column("lines", LONG_TEXT, nullable=False),
        sa.Column("line_count", sa.Integer, nullable=False),
        sa.Column("result", LONG_TEXT, nullable=False),
        sa.Column("message", LONG_TEXT, nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("claimed_ms", sa.BigInteger, nullable=False),
        sa.Column("ended_ms", sa.BigInteger, nullable=False),
        sa.Column("asked_ms", sa.BigInteger, nullable=False),
    )
    op.create_index("idx_lake_work_ended", "lake_work", ["ended_ms"])
    op.create_index("idx_lake_work_state", "lake_work", ["state", "app_key", "created_ms"])
    op.create_index("idx_lake_work_table", "lake_work", ["table_id", "state"])
    _create_table(
        "lake_application",
        sa.Column("app_key", sa.String(80), primary_key=True),
        sa.Column("conf", LONG_TEXT, nullable=False),
        sa.Column("run_id", sa.String(250), nullable=False),
        sa.Column("started_ms", sa.BigInteger, nullable=False),
        sa.Column("pulled_ms", sa.BigInteger, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
    )


def _create_table(name: str, *columns: sa.Column[Any]) -> None:
    op.create_table(name, *columns, **BINARY)


def downgrade() -> None:
    op.drop_table("lake_application")
    op.drop_table("lake_work")
    op.drop_table("lake_report")
    op.drop_table("lake_backlog")
    op.drop_table("lake_history")
    op.drop_table("lake_bill")
    op.drop_table("lake_spent")
    op.drop_table("lake_waiting")
    op.drop_table("lake_run")
    op.drop_table("lake_sink_event")
    op.drop_table("lake_hold")
    op.drop_table("lake_sink")
    op.drop_table("lake_limit")
    op.drop_table("lake_executor")
    op.drop_table("lake_snooze")
    op.drop_table("lake_finding")
    op.drop_table("lake_search")
    op.drop_table("lake_table")
