"""Replicate tables' changes to their sinks: each minute those that are due, or one by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, Param, task
from airflow.sdk.configuration import conf

from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.execution.arguments import optional, with_draft
from airflow_lake_provider.execution.holder import claimant_of
from airflow_lake_provider.execution.sink_entry import CONFIGURED, complete, name_of
from airflow_lake_provider.hooks.lake import LakeHook, as_airflow_error
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.operators.replication import NOTHING, HudiMappedReplicationOperator

SETTINGS = LakeSettings.from_conf(conf)

ACTION_WORDS = {
    "due": "Bring what is due up to date",
    "replicate": "Bring one sink up to date",
    "snapshot": "Take a new snapshot",
    "seek": "Continue from a time",
    "verify": "Compare a sink with its table",
    "repair": "Send rows that differ again",
    "pause": "Pause a sink",
    "resume": "Resume a sink",
    "forget": "Forget a sink, and release its hold",
}
"""What the form shows in place of a value."""

OVER = "Instead of the tables file's, or of a sink that it does not have"
"""A section of the form."""

MODE_WORDS = {
    CONFIGURED: "As in the tables file, else each change",
    "changes": "Each change",
    "latest": "The newest row of each key",
}

DOC = """
### Changes of Hudi tables, to Kafka and elsewhere

Each minute it brings the sinks that the tables file configures, and that lack something, up to date, one mapped task
each; with `[lake] streams_at_once` only those whose table has Spark settings of its own, since `lake_streams` takes the
others. A broker that does not answer, a missing topic, a refused login: the task fails with that sentence, the hold of
the sink keeps the table's files, and later runs retry with growing pauses from the sink's checkpoint.

By hand, with the form: `replicate` one table to a sink, take a new `snapshot`, of all rows or of some, `seek` to a
time, `verify` that a sink has the table's rows, `repair` those that differ, `pause` and `resume` a sink, or `forget`
it, which releases its hold. Table and name are enough for a sink that the tables file has: its entry has the rest, and
what the form sets goes over it. Another sink needs its options in the form.
"""

with DAG(
    dag_id="lake_replication",
    description="Replicates tables' changes to their sinks",
    schedule=timedelta(minutes=1),
    # A backfill would run for times that mean nothing here.
    allowed_run_types=["scheduled", "manual", "operator_triggered"],
    catchup=False,
    # A long snapshot must not block the other sinks: the manager knows which sinks have a run.
    max_active_runs=8,
    max_active_tasks=16,
    # It costs two tasks each minute, so it is off until a user enables it.
    is_paused_upon_creation=True,
    # Its runs have nothing to do with each other: a deployment's limit would pause it for all tables.
    max_consecutive_failed_dag_runs=0,
    tags=["lake", "hudi", "replication"],
    default_args={"owner": "lake"},
    doc_md=DOC,
    params=with_draft(
        {
            "action": Param(
                "due",
                type="string",
                enum=["due", "replicate", "snapshot", "seek", "verify", "repair", "pause", "resume", "forget"],
                values_display=ACTION_WORDS,
                title="Action",
            ),
            "base_path": optional("string", title="Table", description="Its base path; for all actions but the first"),
            "name": optional("string", title="Name", description="Of the sink in the tables file; empty: as Sink"),
            "sink": optional("string", title="Sink", description="kafka, file, database, ...; empty: the entry's"),
            "rows": optional(
                "string", title="Rows", description="Of a snapshot: day = '2026-06-01', say; empty: all of them"
            ),
            "seek_until": optional("string", title="Seek", description="Completion time after which to continue"),
            "mode": Param(
                CONFIGURED,
                type="string",
                enum=list(MODE_WORDS),
                values_display=MODE_WORDS,
                section=OVER,
                title="Mode",
            ),
            "key": Param(
                [],
                type="array",
                items={"type": "string"},
                section=OVER,
                title="Key",
                description="None: the entry's, else the record key",
            ),
            "options": Param(
                {}, type="object", section=OVER, title="Sink options", description="conn_id names a connection"
            ),
            "ttl_s": optional("number", exclusiveMinimum=0, section=OVER, title="Time to live, seconds"),
            "spark_conf": Param({}, type="object", section=OVER, title="Spark conf"),
        }
    ),
) as dag:

    @task(retries=2, retry_delay=timedelta(seconds=5), execution_timeout=timedelta(minutes=15))
    def find_work(
        params: dict[str, Any] | None = None, run_id: str | None = None, ti: object = None
    ) -> list[dict[str, Any]]:
        """Return the operator's arguments for each sink that should run."""
        wanted = {key: "" if value is None else value for key, value in (params or {}).items()}
        action, hook = wanted.get("action", "due"), LakeHook()
        if action == "due":
            common = ("base_path", "table_name", "name", "sink", "mode", "key", "options", "ttl_s", "spark_conf")
            common += ("max_hold_s", "max_held_bytes")
            claimant = claimant_of({"run_id": run_id, "ti": ti})
            claimed = hook.claim_due_sinks(claimant, is_split=SETTINGS.streams_at_once > 0)
            work = [{"is_claimed": True, **{key: sink[key] for key in common}} for sink in claimed]
            # Of an empty list Airflow would leave a skipped task each minute.
            return work or [dict(NOTHING)]
        try:
            return find_by_hand(wanted, hook)
        except LakeError as error:
            raise as_airflow_error(error) from error

    def find_by_hand(wanted: dict[str, Any], hook: LakeHook) -> list[dict[str, Any]]:
        """Do what the form asks of one sink, or return the operator's arguments for it."""
        action = wanted["action"]
        base_path = normalise_base_path(wanted["base_path"])
        table_id = table_id_of(base_path)
        name = name_of(wanted)
        if action in {"pause", "resume"}:
            hook.pause_replication(table_id, name, paused=action == "pause")
            return [dict(NOTHING)]
        if action == "forget":
            hook.forget_sink(table_id, name)
            return [dict(NOTHING)]
        return [{"base_path": base_path, **complete(wanted, hook.find_sink_entry(table_id, name))}]

    HudiMappedReplicationOperator.partial(
        task_id="replicate",
        retries=2,
        retry_delay=timedelta(seconds=SETTINGS.retry_delay_s),
        retry_exponential_backoff=2.0,
        max_active_tis_per_dag=8,
        execution_timeout=timedelta(hours=12),
        map_index_template="{{ task.base_path or 'no sink is due' }} {{ task.name or task.sink }}",
    ).expand_kwargs(find_work())
