"""The settings of a `kafka` entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import ConfigError

if TYPE_CHECKING:
    from airflow_lake_provider.replication.sink import SinkSettings

JSON, AVRO = "json", "avro"
FORMATS = (JSON, AVRO)


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of a `kafka` entry. `kafka.<setting>` is handed to the client as `<setting>`."""

    bootstrap_servers: str
    topic: str
    checkpoint_topic: str
    create_topics: bool
    """Off: a missing topic is an error that says so. On: it is created with `partitions` and `replication_factor`."""
    partitions: int
    replication_factor: int
    dead_letter_topic: str
    """Where keys go of records that are too large or misfit the Avro schema; without it such a record stops all."""
    timeout_s: float
    """How long a broker that is away is waited for before the run gives up."""
    client: dict[str, str]
    format: str = JSON
    """`json` or `avro`. The key is JSON in both: it names the row, byte for byte."""
    schema_registry: str = ""
    """Address of a registry with Confluent's interface; empty: each Avro message carries its schema."""
    schema_registry_user: str = ""
    schema_registry_password: str = ""

    @property
    def transaction_timeout_ms(self) -> int:
        """How long the broker leaves a transaction open: `kafka.transaction.timeout.ms`, or what suits large commits.

        Fifteen minutes is what a broker allows unless its `transaction.max.timeout.ms` says otherwise.
        """
        return int(self.client.get("transaction.timeout.ms", max(600_000, min(self.timeout_s * 1000, 900_000))))

    @property
    def client_settings(self) -> dict[str, str | int | float | bool]:
        """What each client of the broker is made with."""
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": "2", **self.client}


def parse_options(settings: SinkSettings) -> KafkaOptions:
    """Read the options. Raises ConfigError for missing and unknown ones, and for those that would lose data."""
    options = dict(settings.options)
    client = {key[6:]: options.pop(key) for key in list(options) if key.startswith("kafka.")}
    for key in ("transactional.id", "enable.idempotence", "acks"):
        if key in client:
            raise ConfigError(f"kafka.{key} must not be set: exactly-once delivery depends on it")
    try:
        topic = options.pop("topic")
        parsed = KafkaOptions(
            bootstrap_servers=options.pop("bootstrap_servers"),
            topic=topic,
            checkpoint_topic=options.pop("checkpoint_topic", f"{topic}.checkpoints"),
            create_topics=options.pop("create_topics", "false").lower() == "true",
            partitions=int(options.pop("partitions", "1")),
            replication_factor=int(options.pop("replication_factor", "1")),
            dead_letter_topic=options.pop("dead_letter_topic", ""),
            timeout_s=float(options.pop("timeout_s", "60")),
            client=client,
            format=options.pop("format", JSON),
            schema_registry=options.pop("schema_registry", ""),
            schema_registry_user=options.pop("schema_registry_user", ""),
            schema_registry_password=options.pop("schema_registry_password", ""),
        )
        if parsed.transaction_timeout_ms <= 0:
            raise ValueError("kafka.transaction.timeout.ms must be above 0")
    except KeyError as error:
        raise ConfigError(f"the kafka sink of {settings.table_name} needs the setting {error}") from error
    except ValueError as error:
        raise ConfigError(f"the kafka sink of {settings.table_name}: {error}") from error
    if options:
        raise ConfigError(f"the kafka sink of {settings.table_name} knows no setting {', '.join(sorted(options))}")
    if parsed.format not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise ConfigError(f"the kafka sink of {settings.table_name}: format is {parsed.format!r}, allowed: {allowed}")
    if parsed.schema_registry and parsed.format != AVRO:
        raise ConfigError(f"the kafka sink of {settings.table_name}: schema_registry is for format: {AVRO}")
    return parsed
