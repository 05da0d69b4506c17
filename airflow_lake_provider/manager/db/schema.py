"""Our tables in Airflow's metadata database. Times are milliseconds since the epoch: the same on every database.

`lake_table` is the registry: one row per table with its dirty mark, the claim of the loop that looks at it, and what
the last look said. `lake_executor` is one row per table and service that has a running executor. `lake_limit` is one
row per pool or queue with a limit; it is locked while somebody counts. `lake_sink` is one row per table
and sink of replication, with what the sink holds back. `lake_report` is one row per thing that people were told of.
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
    # When name and database were last taken from hoodie.properties; NULL: never, so the name is what was announced,
    # and selects no policy. The database is what was announced, too, where the properties have none.
    Column("identified_ms", BigInteger, nullable=True),
    Column("has_database", Boolean, nullable=False, default=False, server_default=false()),
    Column("registered_ms", BigInteger, nullable=False),
    # The dirty mark. Each notice raises dirty_seq; a look clears dirty_since_ms only if dirty_seq is still the one
    # that it claimed, so a notice that arrives during a look is never wiped out by it.
    Column("dirty_seq", BigInteger, nullable=False, default=0),
    Column("dirty_since_ms", BigInteger, nullable=True),
    Column("notices", BigInteger, nullable=False, default=0),
    Column("last_notice_ms", BigInteger, nullable=True),
    Column("last_notice_source", String(40), nullable=False, default=""),
    Column("last_notice_instant", String(40), nullable=False, default=""),
    # The claim of a look.
    Column("claim_token", String(40), nullable=True),
    Column("claim_until_ms", BigInteger, nullable=False, default=0),
    # What the last look said.
    Column("looked_ms", BigInteger, nullable=True),
    Column("look_failures", Integer, nullable=False, default=0),
    Column("next_look_ms", BigInteger, nullable=True),
    Column("retry_ms", BigInteger, nullable=True),
    Column("completed_time", String(40), nullable=False, default=""),
    Column("view_version", String(80), nullable=False, default=""),
    Column("decisions", Text, nullable=False, default="[]"),
    Column("problem", Text, nullable=False, default=""),
    # Pending writes and plans with completed writes behind them.
    Column("holes", Integer, nullable=False, default=0),
    # The last run of each service and what became of it (planner.turns), as JSON; null is none.
    Column("turns", Text, nullable=True),
    # When the doctor's round examined it last.
    Column("examined_ms", BigInteger, nullable=True),
    Index("idx_lake_table_dirty", "dirty_since_ms"),
    Index("idx_lake_table_last_notice", "last_notice_ms"),
    Index("idx_lake_table_next_look", "next_look_ms"),
    Index("idx_lake_table_retry", "retry_ms"),
    Index("idx_lake_table_identified", "identified_ms"),
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
    # By the tables file; otherwise somebody started it by hand, and it stays until it is forgotten by hand.
    Column("is_configured", Boolean, nullable=False),
    # Set while a sink that the tables file had is in it no more: until then its hold counts, then it is forgotten.
    Column("retire_ms", BigInteger, nullable=True),
    # What cleaning and archiving must leave: a requested time; "0" is everything.
    Column("hold", String(40), nullable=False),
    Column("ttl_s", BigInteger, nullable=False),
    Column("renewed_ms", BigInteger, nullable=False),
    Column("needs_snapshot", Boolean, nullable=False),
    Column("paused", Boolean, nullable=False),
    # A copy for people; the sink's own is the true one.
    Column("checkpoint", Text, nullable=False),
    # How far the last look went that left nothing to do: a completion time of the table.
    Column("completed_time", String(40), nullable=False),
    # The run that has the sink until then, unless it is heard of again.
    Column("run_id", String(250), nullable=False, server_default=""),
    Column("running_until_ms", BigInteger, nullable=False),
    Column("failures", Integer, nullable=False),
    Column("retry_ms", BigInteger, nullable=False),
    Column("problem", Text, nullable=False),
)

lake_report = Table(
    "lake_report",
    metadata,
    Column("report_id", String(64), primary_key=True),
    # Until then somebody is telling; who takes longer has died.
    Column("claim_until_ms", BigInteger, nullable=False),
    Column("told_ms", BigInteger, nullable=True),
)
