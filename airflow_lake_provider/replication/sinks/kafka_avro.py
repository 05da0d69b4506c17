"""Avro for a topic. Apart from the sink: only who asks for Avro needs its library in Spark's driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.replication.formats.schema_registry import SchemaRegistry

if TYPE_CHECKING:
    from airflow_lake_provider.replication.change import Mode
    from airflow_lake_provider.replication.formats.avro import AvroFormat
    from airflow_lake_provider.replication.sinks.kafka_options import KafkaOptions


def open_avro(options: KafkaOptions, mode: Mode) -> AvroFormat:
    """Return the format that the options ask for. Raises ConfigError where fastavro is not installed."""
    try:
        # Not at the top: JSON must do without it.
        from airflow_lake_provider.replication.formats.avro import AvroFormat
    except ModuleNotFoundError as error:
        raise ConfigError(f"format: avro needs {error.name} beside Spark's driver: install fastavro") from error
    if not options.schema_registry:
        return AvroFormat(mode)
    registry = SchemaRegistry(
        options.schema_registry,
        f"{options.topic}-value",
        options.schema_registry_user,
        options.schema_registry_password,
        options.timeout_s,
    )
    return AvroFormat(mode, registry.register)
