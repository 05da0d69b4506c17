"""The settings of a `kafka` entry, those of its formats included; what Kafka's errors mean; Avro for a topic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import confluent_kafka

from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.change import ChangeMode
from airflow_lake_provider.replication.formats.debezium import (
    DOUBLE,
    NOTHING,
    PRECISE,
    STRING,
    TRUNCATE,
    DebeziumOptions,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.formats.avro import AvroFormat
    from airflow_lake_provider.replication.sink import SinkSettings

FORMATS = JSON, AVRO, DEBEZIUM = "json", "avro", "debezium"


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of a `kafka` entry. `kafka.<setting>` goes to the client as `<setting>`."""

    bootstrap_servers: str
    topic: str
    checkpoint_topic: str
    create_topics: bool
    """Off: a missing topic is an error that names it. On: it is created with `partitions` and `replication_factor`."""
    partitions: int
    replication_factor: int
    """Of topics that are created; -1 is the broker's own default."""
    dead_letter_topic: str
    """Topic for records that are too large or misfit the Avro schema; without it they stop the run."""
    timeout_s: float
    """How long a run waits for a broker that does not answer before it gives up."""
    client: dict[str, str]
    format: str = JSON
    """`json`, `avro` or `debezium`. The key is JSON in all of them: it names the row, byte for byte."""
    schema_registry: str = ""
    """Address of a registry with Confluent's interface; empty: each Avro message carries its schema."""
    schema_registry_user: str = ""
    schema_registry_password: str = ""
    control_records: bool = False
    """Each partition gets a record where a snapshot begins and ends, and with each commit. With `json` alone."""
    debezium: DebeziumOptions | None = None
    """The settings of that format; None in others."""

    @property
    def transaction_timeout_ms(self) -> int:
        """How long the broker leaves a transaction open: `kafka.transaction.timeout.ms`, or a default.

        Fifteen minutes is the most that a broker allows unless its `transaction.max.timeout.ms` is higher.
        """
        return int(self.client.get("transaction.timeout.ms", max(600_000, min(self.timeout_s * 1000, 900_000))))

    @property
    def client_settings(self) -> dict[str, str | int | float | bool]:
        """The settings of each client of the broker."""
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": "2", **self.client}


def parse_options(settings: SinkSettings) -> KafkaOptions:
    """Read the options. Raises ConfigError for missing and unknown ones, and for those that would lose data."""
    options = dict(settings.options)
    client = {key[6:]: options.pop(key) for key in list(options) if key.startswith("kafka.")}
    for key in ("transactional.id", "enable.idempotence", "acks"):
        if key in client:
            raise ConfigError(f"kafka.{key} must not be set: exactly-once delivery depends on it")
    try:
        topic, form = options.pop("topic"), options.pop("format", JSON)
        if form == DEBEZIUM:
            options = {"database": settings.database, **options}
        debezium = parse_debezium_options(options, topic, settings.table_name) if form == DEBEZIUM else None
        parsed = KafkaOptions(
            bootstrap_servers=options.pop("bootstrap_servers"),
            topic=topic,
            checkpoint_topic=options.pop("checkpoint_topic", f"{topic}.checkpoints"),
            create_topics=options.pop("create_topics", "false").lower() == "true",
            partitions=int(options.pop("partitions", "1")),
            replication_factor=int(options.pop("replication_factor", "-1")),
            dead_letter_topic=options.pop("dead_letter_topic", ""),
            timeout_s=float(options.pop("timeout_s", "60")),
            client=client,
            format=form,
            schema_registry=options.pop("schema_registry", ""),
            schema_registry_user=options.pop("schema_registry_user", ""),
            schema_registry_password=options.pop("schema_registry_password", ""),
            control_records=options.pop("control_records", "false").lower() == "true",
            debezium=debezium,
        )
        if parsed.transaction_timeout_ms <= 0:
            raise ValueError("kafka.transaction.timeout.ms must be above 0")
    except KeyError as error:
        raise ConfigError(f"the kafka sink of {settings.table_name} needs the setting {error}") from error
    except (ValueError, ConfigError) as error:
        raise ConfigError(f"the kafka sink of {settings.table_name}: {error}") from error
    if options:
        raise ConfigError(f"the kafka sink of {settings.table_name} knows no setting {', '.join(sorted(options))}")
    _require_fit(parsed, settings)
    return parsed


def _require_fit(parsed: KafkaOptions, settings: SinkSettings) -> None:
    if parsed.format not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise ConfigError(f"the kafka sink of {settings.table_name}: format is {parsed.format!r}, allowed: {allowed}")
    for name, form in (("schema_registry", AVRO), ("control_records", JSON)):
        if getattr(parsed, name) and parsed.format != form:
            raise ConfigError(f"the kafka sink of {settings.table_name}: {name} is for format: {form}")
    if parsed.debezium is not None and settings.mode is not ChangeMode.CHANGES:
        raise ConfigError(
            f"the kafka sink of {settings.table_name}: format: {DEBEZIUM} is for mode: {ChangeMode.CHANGES}"
        )


def parse_debezium_options(options: dict[str, str], topic: str, table: str) -> DebeziumOptions:
    """Take the settings of format `debezium` out of an entry's. Raises ConfigError."""
    has_transactions = _take(options, "provide.transaction.metadata", "false", ("true", "false")) == "true"
    transaction_topic = options.pop("topic.transaction", f"{topic}.transaction")
    return DebeziumOptions(
        topic,
        table,
        options.pop("database", ""),
        has_schemas=_take(options, "schemas.enable", "true", ("true", "false")) == "true",
        decimals=_take(options, "decimal.handling.mode", PRECISE, (PRECISE, STRING, DOUBLE)),
        has_tombstones=_take(options, "tombstones.on.delete", "true", ("true", "false")) == "true",
        skipped=_take(options, "skipped.operations", TRUNCATE, (TRUNCATE, NOTHING)),
        transaction_topic=transaction_topic if has_transactions else "",
    )


def _take(options: dict[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    value = options.pop(name, default).lower()
    if value not in allowed:
        raise ConfigError(f"{name} is {value!r}, allowed: {', '.join(allowed)}")
    return value


# --- What Kafka's errors mean to a stream: retry, give up, or make way for another run

REFUSALS = frozenset(
    {
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
        confluent_kafka.KafkaError._AUTHENTICATION,
    }
)
PURGED = frozenset({confluent_kafka.KafkaError._PURGE_QUEUE, confluent_kafka.KafkaError._PURGE_INFLIGHT})
_FENCED = frozenset(
    {
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


def as_lake_error(error: KafkaError, options: KafkaOptions, stream: str) -> LakeError:
    """Return the provider's error with what happened and where; its class shows what to do."""
    where = f"{options.bootstrap_servers}, topic {options.topic}"
    code = error.code()
    if code in _FENCED:
        return SinkFencedError(f"another run has opened stream {stream} ({where})")
    if code in REFUSALS:
        return SinkRefusedError(f"Kafka refuses this client at {where}: {error.str()}")
    if code == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordRefusedError(f"Kafka refuses a record as too large at {where}: {error.str()}")
    return SinkUnavailableError(f"Kafka at {where}: {error.name()}: {error.str()}")


def transaction_overdue(options: KafkaOptions, stream: str, commit: str, took_s: float) -> LakeError:
    """Return the error of a commit whose write took longer than the broker leaves a transaction open."""
    return SinkUnavailableError(
        f"the broker has ended the transaction of commit {commit}, stream {stream} ({options.bootstrap_servers}, topic "
        f"{options.topic}): it was open for {took_s:.0f} s, and kafka.transaction.timeout.ms is "
        f"{options.transaction_timeout_ms}: set a smaller max_transaction_rows, or raise that time-out, and the "
        "broker's transaction.max.timeout.ms where it is lower"
    )


# --- Avro for a topic. Not in the sink's module: only a run with Avro needs its library in Spark's driver


def open_avro(options: KafkaOptions, mode: ChangeMode) -> AvroFormat:
    """Return the format of the options. Raises ConfigError where fastavro is not installed."""
    try:
        # Not at the top: JSON must do without it.
        from airflow_lake_provider.replication.formats.avro import AvroFormat, SchemaRegistry
    except ModuleNotFoundError as error:
        raise ConfigError(f"format: avro needs {error.name} on Spark's driver: install fastavro") from error
    if not options.schema_registry:
        return AvroFormat(mode)
    value, key = (
        SchemaRegistry(
            options.schema_registry,
            f"{options.topic}-{part}",
            options.schema_registry_user,
            options.schema_registry_password,
            options.timeout_s,
        )
        for part in ("value", "key")
    )
    return AvroFormat(mode, value.register, key.register, value.find)
