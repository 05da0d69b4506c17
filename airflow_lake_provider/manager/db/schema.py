"""The provider's tables in Airflow's metadata database. Times are milliseconds since the epoch on every database.

`lake_table` is the registry: one row per table with its dirty mark, the lease of the loop that evaluates it, and the
result of the last evaluation. `lake_search` has what people search for in a short row for each table, because the
registry's rows, with their decisions, are long. `lake_executor` is one row per table and service that has a running
executor. `lake_limit` is one row per pool or queue with a limit; a transaction that counts runs locks it. `lake_sink`
is one row per table and sink of replication, with what the sink holds back. `lake_report` is one row per notification.
`lake_run` is one row for each of a table's newest DAG runs: Airflow's own table has no index by table.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Index, Integer, MetaData, String, Table, Text, false

VERSION_TABLE = "alembic_version_lake"

metadata = MetaData()

lake_table = Table(
    "lake_table",
    metadata,
    Column("table_id", String(80), primary_key=True),
    Column("base_path", Text, nullable=False),
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
    Column("view_version", String(80), nullable=False, default=""),
    Column("decisions", Text, nullable=False, default="[]"),
    Column("problem", Text, nullable=False, default=""),
    # Since when no evaluation has found a table at the base path; NULL: the last one found it.
    Column("missing_since_ms", BigInteger, nullable=True),
    # Pending writes and plans with completed writes behind them.
    Column("holes", Integer, nullable=False, default=0),
    # The last run of each service and its result (planner.last_runs), as JSON; null is none.
    Column("last_runs", Text, nullable=True),
    # `table_id_of` where a local path leads, its links followed; NULL: not known, or no local path.
    Column("real_id", String(80), nullable=True),
    # When the doctor's round last examined it; 0: never.
    Column("examined_ms", BigInteger, nullable=False, default=0, server_default="0"),
    # Requested times of the newest commits that a commit callback announced, a space behind each; and of the newest
    # instants of services that tasks reported as their own, with the moments of these reports.
    Column("announced", String(1000), nullable=False, default="", server_default=""),
    Column("served", String(1000), nullable=False, default="", server_default=""),
    # What the checks of the table's writers proved (planner.conformance), as JSON; null is none.
    Column("conformance", Text, nullable=True),
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

lake_search = Table(
    "lake_search",
    metadata,
    Column("table_id", String(80), primary_key=True),
    Column("table_name", String(500), nullable=False),
    # `identity_of` the base path and a slash, for searches below a root.
    Column("identity", Text, nullable=False),
    # Name, database and base path in lower case.
    Column("search_text", Text, nullable=False),
    # What the last evaluation found.
    Column("is_due", Boolean, nullable=False, server_default=false()),
    Column("is_blocked", Boolean, nullable=False, server_default=false()),
    Column("has_problem", Boolean, nullable=False, server_default=false()),
    Column("database_name", String(500), nullable=False, default="", server_default=""),
    # Its summary: `search.Summary`.
    Column("state", String(20), nullable=False, default="new", server_default="new"),
    Column("severity", Integer, nullable=False, default=10, server_default="10"),
    Column("log_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    Column("base_bytes", BigInteger, nullable=False, default=0, server_default="0"),
    Index("idx_lake_search_name", "table_name", "table_id"),
    Index("idx_lake_search_worst", "severity", "log_bytes", "table_id"),
    Index("idx_lake_search_backlog", "log_bytes", "table_id"),
)

lake_executor = Table(
    "lake_executor",
    metadata,
    Column("table_id", String(80), primary_key=True),
    Column("service", String(40), primary_key=True),
    Column("token", String(40), nullable=False),
    Column("run_id", String(250), nullable=False),
    Column("try_number", Integer, nullable=False),
    Column("acquired_ms", BigInteger, nullable=False),
    Column("lease_until_ms", BigInteger, nullable=False),
)

lake_limit = Table(
    "lake_limit",
    metadata,
    Column("name", String(300), primary_key=True),
    Column("held_ms", BigInteger, nullable=False, default=0),
)

lake_sink = Table(
    "lake_sink",
    metadata,
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
    Column("checkpoint", Text, nullable=False),
    # The table's completed time at the last run that left nothing to do.
    Column("completed_time", String(40), nullable=False),
    # The run that has the sink until then, unless it reports again.
    Column("run_id", String(250), nullable=False, server_default=""),
    Column("running_until_ms", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("retry_ms", BigInteger, nullable=False),
    Column("problem", Text, nullable=False),
    Index("idx_lake_sink_retire", "retire_ms"),
)

lake_run = Table(
    "lake_run",
    metadata,
    Column("run_id", String(250), primary_key=True),
    Column("table_id", String(80), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("service", String(40), nullable=False, default="", server_default=""),
    # What its executor reported: the result of the last try, and its job's time, all tries together. NULL: not known.
    Column("outcome", String(40), nullable=False, default="", server_default=""),
    Column("reported_try", Integer, nullable=False, default=0, server_default="0"),
    Column("job_ms", BigInteger, nullable=False, default=0, server_default="0"),
    Column("files_in", BigInteger, nullable=True),
    Column("bytes_in", BigInteger, nullable=True),
    Column("files_out", BigInteger, nullable=True),
    Column("bytes_out", BigInteger, nullable=True),
    Index("idx_lake_run_table", "table_id", "created_ms"),
    Index("idx_lake_run_created", "created_ms", "run_id"),
)

lake_report = Table(
    "lake_report",
    metadata,
    Column("report_id", String(64), primary_key=True),
    # The notifying server has until then; a slower one counts as dead.
    Column("claim_until_ms", BigInteger, nullable=False),
    Column("notified_ms", BigInteger, nullable=True),
)
