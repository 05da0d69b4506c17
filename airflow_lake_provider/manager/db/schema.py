"""The provider's tables in Airflow's metadata database. Times are milliseconds since the epoch on every database.

`lake_table` is the registry: one row per table with its dirty mark, the lease of the loop that evaluates it, and the
result of the last evaluation. `lake_search` has what people search for in a short row for each table, because the
registry's rows, with their decisions, are long. `lake_finding` is one row per open finding of the doctor, of the sweep
over deadlines, or of a table's own settings. `lake_snooze` is one row per problem that a person has silenced.
`lake_executor` is one row per table and service that has a running executor. `lake_limit` is one row per pool or queue
with a limit; a transaction that counts runs locks it. `lake_sink` is one row per table and sink of replication, with
what the sink holds back. `lake_sink_event` is one row per event of a sink, for a day. `lake_hold` is one row per reader
that holds files of a table. `lake_report` is one row per notification. `lake_run` is the record of a run: all of a
table's newest ones and samples of older ones; Airflow's own table has no index by table. `lake_waiting` is one row per
budget and service that waits for it, `lake_spent` one per budget and hour, `lake_history` one per service of a table
and time in which one thing kept it from running, for days, `lake_bill` one per table, service and day of the last
month, `lake_backlog` one per quarter of an hour of the last week. `lake_work` is one row per item of work for standing
Spark applications, `lake_application` one row per kind of application.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text, false
from sqlalchemy.dialects import mysql

VERSION_TABLE = "alembic_version_lake"

NEVER_MS = 1 << 62
"""Milliseconds: the commit of a table without one, which sorts after all others."""

LONG_TEXT = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
"""Texts of any length: a `text` of MySQL ends after 64 KiB, and the decisions of a large table are longer."""

metadata = MetaData()

_BINARY: dict[str, Any] = {
    f"{dialect}_{option}": value
    for dialect in ("mysql", "mariadb")
    for option, value in (("charset", "utf8mb4"), ("collate", "utf8mb4_bin"))
}


def _table(name: str, *columns: Column[Any] | Index) -> Table:
    """Return a table whose texts compare by their characters; on MySQL two that differ by case alone are equal."""
    table: Table = Table(name, metadata, *columns, **_BINARY)
    return table


lake_table = _table(
    "lake_table",
    Column("table_id", String(80), primary_key=True),
    Column("base_path", LONG_TEXT, nullable=False),
    Column("table_name", String(500), nullable=False),
    Column("database_name", String(500), nullable=False, default=""),
    Column("owner", String(500), nullable=False, default=""),
    # When name and database were last read from hoodie.properties; NULL: never, so the name comes from a notice and
    # selects no policy. The database comes from a notice, too, where the properties have none.
    Column("identified_ms", BigInteger, nullable=True),
    Column("has_database", Boolean, nullable=False, default=False, server_default=false()),
    # `lake_discovery` found it, and neither a writer nor the tables file has named it since.
    Column("is_only_discovered", Boolean, nullable=False, default=False, server_default=false()),
    Column("registered_ms", BigInteger, nullable=False),
    # The dirty mark. Each notice raises dirty_seq; an evaluation clears dirty_since_ms only if dirty_seq still equals
    # its lease's, so an evaluation never clears the mark of a notice that arrives meanwhile.
    Column("dirty_seq", BigInteger, nullable=False, default=0),
    Column("dirty_since_ms", BigInteger, nullable=True),
    Column("notices", BigInteger, nullable=False, default=0),
    Column("last_notice_ms", BigInteger, nullable=True),
    Column("last_notice_source", String(40), nullable=False, default=""),
    Column("last_notice_instant", String(40), nullable=False, default=""),
    # The lease of the evaluating loop.
    Column("claim_token", String(40), nullable=True),
    Column("claim_until_ms", BigInteger, nullable=False, default=0),
    # The result of the last evaluation.
    Column("evaluated_ms", BigInteger, nullable=True),
    Column("evaluation_failures", Integer, nullable=False, default=0),
    Column("next_evaluation_ms", BigInteger, nullable=True),
    Column("retry_ms", BigInteger, nullable=True),
    Column("completed_time", String(40), nullable=False, default=""),
    # The newest completed time of a write that changed rows, or of a restore: what replication waits for.
    Column("changed_time", String(40), nullable=False, default="", server_default=""),
    # The same, ms since the epoch.
    Column("last_commit_ms", BigInteger, nullable=True),
    Column("view_version", String(80), nullable=False, default=""),
    Column("decisions", LONG_TEXT, nullable=False, default="[]"),
    Column("problem", LONG_TEXT, nullable=False, default=""),
    # Since when no evaluation has found a table at the base path; NULL: the last one found it.
    Column("missing_since_ms", BigInteger, nullable=True),
    # Pending writes and plans with completed writes behind them.
    Column("holes", Integer, nullable=False, default=0),
    # The last run of each service and its result (planner.last_runs), as JSON; null is none.
    Column("last_runs", LONG_TEXT, nullable=True),
    # `table_id_of` where a local path leads, its links followed; NULL: not known, or no local path.
    Column("real_id", String(80), nullable=True),
    # When the doctor's round last examined it; 0: never.
    Column("examined_ms", BigInteger, nullable=False, default=0, server_default="0"),
    # Requested times of the newest commits that a commit callback announced, a space behind each; and of the newest
    # instants of services that tasks reported as their own, with the moments of these reports.
    Column("announced", String(1000), nullable=False, default="", server_default=""),
    Column("served", String(1000), nullable=False, default="", server_default=""),
    # What the checks of the table's writers proved (planner.conformance), as JSON; null is none.
    Column("conformance", LONG_TEXT, nullable=True),
    # Its state, since when, why and what to do (manager.health), as JSON; null is that of a new table.
    Column("health", LONG_TEXT, nullable=True),
    # Which commits have become events of its asset (manager.commit_events), as JSON; null: none is to.
    Column("event_cursor", LONG_TEXT, nullable=True),
    Index("idx_lake_table_dirty", "dirty_since_ms"),
    Index("idx_lake_table_last_notice", "last_notice_ms"),
    Index("idx_lake_table_next_evaluation", "next_evaluation_ms"),
    Index("idx_lake_table_retry", "retry_ms"),
    Index("idx_lake_table_identified", "identified_ms"),
    Index("idx_lake_table_missing", "missing_since_ms"),
    Index("idx_lake_table_name", "table_name", "table_id"),
    Index("idx_lake_table_examined", "examined_ms"),
    Index("idx_lake_table_holes", "holes"),
    Index("idx_lake_table_real", "real_id"),
)

lake_search = _table(
    "lake_search",
    Column("table_id", String(80), primary_key=True),
    Column("table_name", String(500), nullable=False),
    # `identity_of` the base path and a slash, for searches below a root.
    Column("identity", LONG_TEXT, nullable=False),
    # Name, database and base path in lower case.
    Column("search_text", LONG_TEXT, nullable=False),
    Column("database_name", String(500), nullable=False, default="", server_default=""),
    Column("owner", String(500), nullable=False, default="", server_default=""),
    # Its state (db.health), and what lists sort by.
    Column("state", String(20), nullable=False, default="new", server_default="new"),
    Column("severity", Integer, nullable=False, default=10, server_default="10"),
    Column("log_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    Column("base_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    Column("due_since_ms", BigInteger, nullable=False, default=0, server_default="0"),
    # The newest commit that changed rows; those without one are the last in that order.
    Column("last_commit_ms", BigInteger, nullable=False, default=NEVER_MS, server_default=str(NEVER_MS)),
    # Base files that the active timeline shows, and their bytes.
    Column("files", BigInteger, nullable=False, default=0, server_default="0"),
    Column("file_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    Column("is_paused", Boolean, nullable=False, default=False, server_default=false()),
    Column("is_observed", Boolean, nullable=False, default=False, server_default=false()),
    Column("is_held", Boolean, nullable=False, default=False, server_default=false()),
    Column("is_snoozed", Boolean, nullable=False, default=False, server_default=false()),
    Index("idx_lake_search_name", "table_name", "table_id"),
    Index("idx_lake_search_worst", "severity", "log_bytes", "table_id"),
    Index("idx_lake_search_backlog", "log_bytes", "table_id"),
    Index("idx_lake_search_due", "due_since_ms"),
    Index("idx_lake_search_commit", "last_commit_ms", "table_id"),
    Index("idx_lake_search_size", "file_bytes", "table_id"),
)

lake_finding = _table(
    "lake_finding",
    Column("table_id", String(80), primary_key=True),
    # `health.FoundBy`.
    Column("found_by", String(20), primary_key=True),
    Column("kind", String(40), primary_key=True),
    # The instant, or the run; empty: the table.
    Column("instant", String(250), primary_key=True),
    Column("cause", LONG_TEXT, nullable=False),
    Column("remedy", LONG_TEXT, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
)

lake_snooze = _table(
    "lake_snooze",
    # A problem of a table that a person has silenced until then: its state, what found it, and what it is about.
    Column("table_id", String(80), primary_key=True),
    Column("state", String(20), primary_key=True),
    Column("source", String(20), primary_key=True),
    Column("subject", String(300), primary_key=True),
    # By whom, and why.
    Column("why", String(500), nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("ends_ms", BigInteger, nullable=False),
)

lake_executor = _table(
    "lake_executor",
    Column("table_id", String(80), primary_key=True),
    Column("service", String(40), primary_key=True),
    Column("token", String(40), nullable=False),
    Column("run_id", String(250), nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("acquired_ms", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
)

lake_limit = _table(
    "lake_limit",
    Column("name", String(300), primary_key=True),
    Column("held_ms", BigInteger, nullable=False, default=0),
)

lake_sink = _table(
    "lake_sink",
    Column("table_id", String(80), primary_key=True),
    Column("sink", String(80), primary_key=True),
    # By the tables file; otherwise a run by hand created it, and it stays until an operator forgets it.
    Column("is_configured", Boolean, nullable=False),
    # Set when the tables file names the sink no more: its hold counts until then, then the sink is forgotten.
    Column("retire_ms", BigInteger, nullable=True),
    # What cleaning and archiving must leave: a requested time; "0" is everything.
    Column("hold", String(40), nullable=False),
    Column("ttl_s", BigInteger, nullable=False),
    Column("renewed_ms", BigInteger, nullable=False),
    Column("needs_snapshot", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    # A copy for people; the sink's own checkpoint decides.
    Column("checkpoint", LONG_TEXT, nullable=False),
    # The table's changed time at the last run that left nothing to do.
    Column("completed_time", String(40), nullable=False),
    # When a run has left nothing to do: an entry's heartbeats count from it.
    Column("had_all_ms", BigInteger, nullable=False, server_default="0"),
    # Since when the manager has known that it lacks something; 0 when it lacks nothing.
    Column("due_ms", BigInteger, nullable=False, server_default="0"),
    # The run that has the sink until then, unless it reports again.
    Column("run_id", String(250), nullable=False, server_default=""),
    Column("running_until_ms", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("retry_ms", BigInteger, nullable=False),
    Column("problem", LONG_TEXT, nullable=False),
    Index("idx_lake_sink_retire", "retire_ms"),
)

lake_hold = _table(
    "lake_hold",
    Column("hold_id", String(40), primary_key=True),
    Column("table_id", String(80), nullable=False),
    # By which token it was asked for; empty: by a command.
    Column("token", String(100), nullable=False),
    # What reads, and why; for people.
    Column("reader", String(100), nullable=False),
    Column("reason", String(300), nullable=False),
    # As that of a sink.
    Column("hold", String(40), nullable=False),
    # The instant that the reader asked for; empty: the newest.
    Column("at_instant", String(40), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    # A clean or an archive whose executor began until then may know nothing of the hold.
    Column("known_ms", BigInteger, nullable=False),
    # No such executor is left, and the files are there: the reader may begin.
    Column("is_firm", Boolean, nullable=False),
    Column("ttl_ms", BigInteger, nullable=False),
    # It ends then unless it is renewed; never later than `until_ms`.
    Column("ends_ms", BigInteger, nullable=False),
    Column("until_ms", BigInteger, nullable=False),
    Index("idx_lake_hold_table", "table_id"),
)

lake_run = _table(
    "lake_run",
    Column("run_id", String(250), primary_key=True),
    Column("table_id", String(80), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("service", String(40), nullable=False, default="", server_default=""),
    # The n-th run of the table's service: old records are thinned by it (operations.thin).
    Column("number", Integer, nullable=False, default=0, server_default="0"),
    # Why it ran: what made the table be evaluated, since when the service was due, and the decision with its inputs
    # (operations.Quote), as JSON. An observed one was never created: its id begins with `observed.`.
    Column("caused_by", String(40), nullable=False, default="", server_default=""),
    Column("due_ms", BigInteger, nullable=True),
    Column("quote", LONG_TEXT, nullable=True),
    # The budgets that it is charged to, a space before and behind each; and what they were charged in which hour.
    Column("scopes", LONG_TEXT, nullable=True),
    Column("cores", Integer, nullable=False, default=1, server_default="1"),
    Column("charged_core_ms", BigInteger, nullable=False, default=0, server_default="0"),
    Column("charged_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    # What its executor reported: the result of the last try, and its job's time, all tries together. NULL: not known.
    Column("started_ms", BigInteger, nullable=True),
    Column("ended_ms", BigInteger, nullable=True),
    Column("outcome", String(40), nullable=False, default="", server_default=""),
    Column("reported_try", Integer, nullable=False, default=0, server_default="0"),
    Column("job_ms", BigInteger, nullable=False, default=0, server_default="0"),
    Column("files_in", BigInteger, nullable=True),
    Column("bytes_in", BigInteger, nullable=True),
    Column("files_out", BigInteger, nullable=True),
    Column("bytes_out", BigInteger, nullable=True),
    # Why its last failed try failed; NULL: none has, or none said it.
    Column("error", LONG_TEXT, nullable=True),
    Index("idx_lake_run_table", "table_id", "created_ms"),
    Index("idx_lake_run_created", "created_ms", "run_id"),
    Index("idx_lake_run_ended", "service", "ended_ms"),
)

lake_waiting = _table(
    "lake_waiting",
    # A due service that waits has a row for each budget that bounds it, and one with an empty scope, which people see.
    Column("scope", String(300), primary_key=True),
    Column("table_id", String(80), primary_key=True),
    Column("service", String(40), primary_key=True),
    # The order (planner.ranking): the earliest first. It does not change while the service waits.
    Column("rank_ms", BigInteger, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    Column("core_ms", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    # The budget that had no room for it when it was last evaluated.
    Column("short_of", String(300), nullable=False, default="", server_default=""),
    Column("reason", LONG_TEXT, nullable=False, default=""),
    Column("quote", LONG_TEXT, nullable=False, default=""),
    Index("idx_lake_waiting_rank", "scope", "rank_ms"),
    Index("idx_lake_waiting_table", "table_id"),
)

lake_spent = _table(
    "lake_spent",
    # What runs of a budget that were created in an hour cost, and what became due in it: the day is a sum of 24 rows.
    Column("scope", String(300), primary_key=True),
    Column("hour_ms", BigInteger, primary_key=True),
    Column("core_ms", BigInteger, nullable=False, default=0),
    Column("bytes", BigInteger, nullable=False, default=0),
    Column("arrived_core_ms", BigInteger, nullable=False, default=0),
    Column("arrived_bytes", BigInteger, nullable=False, default=0),
    Index("idx_lake_spent_hour", "hour_ms"),
)

lake_bill = _table(
    "lake_bill",
    # What executors reported of a table's service on a day (UTC), and what was predicted of the runs that succeeded.
    Column("table_id", String(80), primary_key=True),
    Column("service", String(40), primary_key=True),
    Column("day_ms", BigInteger, primary_key=True, autoincrement=False),
    # Of the newest run.
    Column("label", String(500), nullable=False, default=""),
    Column("runs", BigInteger, nullable=False, default=0),
    Column("failed_tries", BigInteger, nullable=False, default=0),
    Column("core_ms", BigInteger, nullable=False, default=0),
    Column("bytes_out", BigInteger, nullable=False, default=0),
    Column("files_in", BigInteger, nullable=False, default=0),
    Column("files_out", BigInteger, nullable=False, default=0),
    Column("expected_core_ms", BigInteger, nullable=False, default=0),
    Column("expected_bytes", BigInteger, nullable=False, default=0),
    Index("idx_lake_bill_day", "day_ms"),
)

lake_history = _table(
    "lake_history",
    # How long one situation of a table's service lasted that is over, and its last reason (db.history). An empty
    # service is the table.
    Column("table_id", String(80), primary_key=True),
    Column("service", String(40), primary_key=True),
    Column("from_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("until_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("situation", String(40), nullable=False),
    # Since when the service was due; NULL: it was not.
    Column("due_ms", BigInteger, nullable=True),
    Column("reason", LONG_TEXT, nullable=False),
    Index("idx_lake_history_until", "until_ms"),
    Index("idx_lake_history_table", "table_id", "until_ms"),
)

lake_backlog = _table(
    "lake_backlog",
    # The backlog of all tables, as the first sweep of a quarter of an hour found it, and the bill of its day until then
    # (db.backlog_history).
    Column("time_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("log_bytes", BigInteger, nullable=False),
    Column("waiting", BigInteger, nullable=False),
    Column("core_ms", BigInteger, nullable=False),
    Column("ended_runs", BigInteger, nullable=False, default=0, server_default="0"),
    Column("ended_failed_tries", BigInteger, nullable=False, default=0, server_default="0"),
    Column("ended_core_ms", BigInteger, nullable=False, default=0, server_default="0"),
    Column("ended_bytes", BigInteger, nullable=False, default=0, server_default="0"),
)

lake_sink_event = _table(
    "lake_sink_event",
    Column("table_id", String(80), primary_key=True),
    Column("sink", String(80), primary_key=True),
    Column("kind", String(40), primary_key=True),
    Column("at_ms", BigInteger, primary_key=True, autoincrement=False),
    Column("reason", LONG_TEXT, nullable=False),
    Index("idx_lake_sink_event_at", "at_ms"),
)
lake_report = _table(
    "lake_report",
    Column("report_id", String(64), primary_key=True),
    # The notifying server has until then; a slower one counts as dead.
    Column("claim_until_ms", BigInteger, nullable=False),
    Column("notified_ms", BigInteger, nullable=True),
    # Of a table's problem that has not ended: what it is known by, and itself, as JSON (manager.table_problems).
    Column("open_key", String(64), nullable=True),
    Column("problem", LONG_TEXT, nullable=True),
    Index("idx_lake_report_open", "open_key"),
)

lake_work = _table(
    "lake_work",
    Column("item_id", String(64), primary_key=True),
    Column("app_key", String(80), nullable=False),
    Column("table_id", String(80), nullable=False),
    Column("service", String(40), nullable=False),
    Column("run_id", String(250), nullable=False),
    Column("try_number", Integer, nullable=False),
    # The JobRequest as JSON, without secrets.
    Column("request", LONG_TEXT, nullable=False),
    Column("timeout_ms", BigInteger, nullable=False),
    # `work.WorkState`.
    Column("state", String(20), nullable=False),
    # A running item must end: its application cancels it.
    Column("is_cancelled", Boolean, nullable=False),
    # The lease of the application that runs it.
    Column("claim_token", String(40), nullable=False),
    Column("deaths", Integer, nullable=False),
    # The newest lines of its log, as JSON, and how many there were.
    Column("lines", LONG_TEXT, nullable=False),
    Column("line_count", Integer, nullable=False),
    # The JobResult as JSON; empty until it ended.
    Column("result", LONG_TEXT, nullable=False),
    Column("message", LONG_TEXT, nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("claimed_ms", BigInteger, nullable=False),
    Column("ended_ms", BigInteger, nullable=False),
    # When its task last asked for it.
    Column("asked_ms", BigInteger, nullable=False),
    Index("idx_lake_work_state", "state", "app_key", "created_ms"),
    Index("idx_lake_work_table", "table_id", "state"),
    Index("idx_lake_work_ended", "ended_ms"),
)

lake_application = _table(
    "lake_application",
    Column("app_key", String(80), primary_key=True),
    # What it is submitted with, as JSON: queue, spark_conn_id, spark_conf.
    Column("conf", LONG_TEXT, nullable=False),
    # The newest run of the DAG, and when it was created; empty and 0: none.
    Column("run_id", String(250), nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    # When an application last pulled.
    Column("pulled_ms", BigInteger, nullable=False),
    # Runs in a row whose application never pulled.
    Column("failures", Integer, nullable=False),
)
