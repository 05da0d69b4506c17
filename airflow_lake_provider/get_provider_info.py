"""What Airflow's providers manager reads about this package."""

from __future__ import annotations

from typing import Any

TRIGGERS = ["airflow_lake_provider.triggers.timeline", "airflow_lake_provider.triggers.conflict"]


def get_provider_info() -> dict[str, Any]:
    """Return the provider's entries: connection type, configuration, database schema, operators, sensors."""
    return {
        "package-name": "airflow-lake-provider",
        "name": "Lake",
        "description": "Table management service for Apache Hudi lakes",
        "connection-types": [
            {
                "connection-type": "lake",
                "hook-class-name": "airflow_lake_provider.hooks.lake.LakeHook",
                "hook-name": "Lake manager",
                "ui-field-behaviour": {
                    "hidden-fields": ["login", "extra"],
                    "relabeling": {"password": "Service token", "host": "API server's address"},
                    "placeholders": {
                        "host": "http://localhost:8080",
                        "password": "one of [lake] service_tokens",
                    },
                },
            }
        ],
        "hooks": [{"integration-name": "Lake", "python-modules": ["airflow_lake_provider.hooks.lake"]}],
        "operators": [
            {
                "integration-name": "Lake",
                "python-modules": [
                    "airflow_lake_provider.operators.table_service",
                    "airflow_lake_provider.operators.replication",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Lake",
                "python-modules": [
                    "airflow_lake_provider.sensors.commit",
                    "airflow_lake_provider.sensors.conflict",
                    "airflow_lake_provider.sensors.pending_index",
                    "airflow_lake_provider.sensors.replication_lag",
                ],
            }
        ],
        "triggers": [{"integration-name": "Lake", "python-modules": TRIGGERS}],
        "integrations": [
            {
                "integration-name": "Lake",
                "external-doc-url": "https://hudi.apache.org/docs/table_management",
                "tags": ["apache"],
            }
        ],
        "notifications": ["airflow_lake_provider.notifications.webhook.LakeWebhookNotifier"],
        "cli": ["airflow_lake_provider.cli.definition.get_cli_commands"],
        "db-managers": ["airflow_lake_provider.plugins.db_manager.LakeDBManager"],
        "config": {"lake": {"description": "Table services of a Hudi lake.", "options": _options()}},
    }


def _option(description: str, default: str, kind: str = "string", *, sensitive: bool = False) -> dict[str, Any]:
    return {
        "description": description,
        "version_added": "0.1.0",
        "type": kind,
        "example": None,
        "default": default,
        "sensitive": sensitive,
    }


def _options() -> dict[str, Any]:
    return {
        "callback_tokens": _option(
            "Comma list of secrets that writers send in HUDI-CALLBACK-KEY. Empty refuses every notice.",
            "",
            sensitive=True,
        ),
        "service_tokens": _option(
            "Comma list of secrets that Airflow's own tasks send to the manager. Tasks take it from the connection "
            "of type lake; without such a connection they use the first one here.",
            "",
            sensitive=True,
        ),
        "allowed_roots": _option(
            "Comma list of paths; notices for tables outside are answered 403. Empty refuses every notice.",
            "",
        ),
        "tables_file": _option("YAML file with the tables' policies; empty means that the defaults hold for all.", ""),
        "tables_variable": _option(
            "Airflow Variable with settings that are laid over the tables file, in the same shape; off reads none.",
            "lake_tables",
        ),
        "discovery_interval_s": _option(
            "How often the roots of the tables file (discover: ...) are searched for new tables, seconds; takes a new "
            "parse of the DAG lake_discovery.",
            "3600",
            "float",
        ),
        "max_notice_bytes": _option("Largest accepted body of a notice, bytes.", "67108864", "integer"),
        "service_manager_needs_token": _option(
            "Refuse requests of RFC-43's client without token=... in hoodie.table.service.manager.deploy.extra.params; "
            "False: such a request may ask for a look at a registered table, and nothing else.",
            "True",
            "boolean",
        ),
        "loop_enabled": _option("Run the manager's loop in this API server.", "True", "boolean"),
        "loop_interval_s": _option("Longest pause between two passes over dirty tables, seconds.", "1", "float"),
        "claim_lease_s": _option("How long one loop may take to look at one table, seconds.", "60", "float"),
        "executor_lease_s": _option(
            "How long an executor that vanished on another host blocks the next one, seconds; a running job bears a "
            "manager that does not answer for 110 s less, and is ended then.",
            "900",
            "float",
        ),
        "manager_patience_s": _option(
            "How long a service's task repeats what it asks a manager that does not answer, seconds.", "600", "float"
        ),
        "sink_grace_s": _option(
            "How long a sink of replication that is no longer configured holds its table's files, seconds.",
            "259200",
            "float",
        ),
        "heartbeat_timeout_s": _option(
            "Silence after which a table is looked at once without a notice, seconds.", "600", "float"
        ),
        "heartbeat_max_s": _option(
            "The same for tables whose writers announce their commits, seconds; the pause follows the table's rhythm.",
            "21600",
            "float",
        ),
        "max_tables_in_memory": _option("Timelines that one server keeps in memory.", "10000", "integer"),
        "timeline_server": _option(
            "Where readers take timelines from: auto (the server while it answers, else the file system), required "
            "(the server only), off (the file system only).",
            "auto",
        ),
        "timeline_server_url": _option(
            "Address of a timeline server of its own (airflow lake timeline-server); empty: the API servers share "
            "timelines.",
            "",
        ),
        "timeline_snapshot_file": _option(
            "File in which a server keeps what it knows between two starts; empty takes $AIRFLOW_HOME/lake, off keeps "
            "nothing.",
            "",
        ),
        "timeline_look_threads": _option("Looks at storage that a server does at once.", "8", "integer"),
        "timeline_verify_interval_s": _option(
            "How often one table is listed although its folder's time says that nothing changed, seconds.",
            "60",
            "float",
        ),
        "storage_conn_ids": _option(
            "Comma list of root=connection id: the Airflow connection (aws, hdfs, ...) that opens tables below a root.",
            "",
        ),
        "manager_url": _option(
            "Where tasks reach the manager; empty takes the host of [core] execution_api_server_url.", ""
        ),
        "work_dir": _option(
            "Folder (local, or any that Spark's driver reaches) for job requests and results; empty takes "
            "$AIRFLOW_HOME/lake.",
            "",
        ),
        "engine": _option(
            "What runs the jobs: spark-submit, in-process (tiny tables), flink, or one that another package registers.",
            "spark-submit",
        ),
        "notifiers": _option(
            "Comma list of dotted paths to who is told of services that failed for good, were ended at their deadline, "
            "or are stuck: notifier classes without arguments (airflow_lake_provider.notifications.webhook."
            "LakeWebhookNotifier), instances of notifiers, or functions of the event.",
            "",
        ),
        "spark_conn_id": _option("Connection that says where Spark jobs run.", "spark_default"),
        "spark_jars": _option("Comma list of jars for the jobs, among them the Hudi bundle.", ""),
        "spark_packages": _option("Maven coordinates for the jobs, when there are no jars.", ""),
        "retry_delay_s": _option(
            "Pause before the first retry of a service task, seconds; it doubles each time.", "30", "integer"
        ),
        "max_active_services": _option("Service runs that may be active at once.", "16", "integer"),
    }
