"""What Airflow's providers manager reads about this package."""

from __future__ import annotations

from typing import Any

from airflow_lake_provider.config.settings import airflow_options

TRIGGERS = [
    f"airflow_lake_provider.triggers.{name}"
    for name in ("backpressure", "commits", "conflict", "indexing", "polling", "replication_lag", "timeline", "work")
]


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
                    "airflow_lake_provider.operators.approval",
                    "airflow_lake_provider.operators.erasure",
                    "airflow_lake_provider.operators.guard",
                    "airflow_lake_provider.operators.hold",
                    "airflow_lake_provider.operators.indexing",
                    "airflow_lake_provider.operators.table_service",
                    "airflow_lake_provider.operators.replication",
                    "airflow_lake_provider.operators.restore",
                    "airflow_lake_provider.operators.upgrade",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Lake",
                "python-modules": [
                    "airflow_lake_provider.sensors.backpressure",
                    "airflow_lake_provider.sensors.commit",
                    "airflow_lake_provider.sensors.conflict",
                    "airflow_lake_provider.sensors.deferrable",
                    "airflow_lake_provider.sensors.indexing",
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
        "extra-links": ["airflow_lake_provider.operators.table_service.LakeTableLink"],
        "notifications": ["airflow_lake_provider.notifications.webhook.LakeWebhookNotifier"],
        "cli": ["airflow_lake_provider.cli.definition.get_cli_commands"],
        "db-managers": ["airflow_lake_provider.plugins.shipped.LakeDBManager"],
        "config": {"lake": {"description": "Table services of a Hudi lake.", "options": airflow_options()}},
    }
