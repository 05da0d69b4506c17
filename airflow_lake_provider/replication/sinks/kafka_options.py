"""The settings of a `kafka` entry, those of its formats included; what Kafka's errors mean; formats by a registry."""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
from airflow_lake_provider.replication.record_errors import OnRecordError, parse_flag, take_on_record_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.formats.avro import AvroFormat
    from airflow_lake_provider.replication.formats.protobuf import ProtobufFormat
    from airflow_lake_provider.replication.sink import SinkSettings

FORMATS = JSON, AVRO, PROTOBUF, DEBEZIUM = "json", "avro", "protobuf", "debezium"


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
    """Topic for records that are too large or misfit the table's schema; without it they stop the run."""
    timeout_s: float
    """How long a run waits for a broker that does not answer before it gives up."""
    client: dict[str, str]
    format: str = JSON
    """One of `FORMATS`. The key is JSON, byte for byte the row's name, but by a registry it has the format's schema."""
    schema_registry: str = ""
    """Of a registry with Confluent's interface. Protobuf needs it; without it Avro's schema is in each message."""
    schema_registry_user: str = ""
    schema_registry_password: str = ""
    control_records: bool = False
    """Each partition gets a record where a snapshot begins and ends, and with each commit. With `json` alone."""
    debezium: DebeziumOptions | None = None
    """The settings of that format; None in others."""
    on_record_error: OnRecordError = OnRecordError.STOP

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
    has_letters = bool(options.get("dead_letter_topic"))
    try:
        topic, form = options.pop("topic"), options.pop("format", JSON)
        if form == DEBEZIUM:
            options = {"database": settings.database, **options}
        debezium = parse_debezium_options(options, topic, settings.table_name) if form == DEBEZIUM else None
        parsed = KafkaOptions(
            bootstrap_servers=options.pop("bootstrap_servers"),
            topic=topic,
            checkpoint_topic=options.pop("checkpoint_topic", f"{topic}.checkpoints"),
            create_topics=parse_flag("create_topics", options.pop("create_topics", "false")),
            partitions=int(options.pop("partitions", "1")),
            replication_factor=int(options.pop("replication_factor", "-1")),
            dead_letter_topic=options.pop("dead_letter_topic", ""),
            timeout_s=float(options.pop("timeout_s", "60")),
            client=client,
            format=form,
            schema_registry=options.pop("schema_registry", ""),
            schema_registry_user=options.pop("schema_registry_user", ""),
            schema_registry_password=options.pop("schema_registry_password", ""),
            control_records=parse_flag("control_records", options.pop("control_records", "false")),
            debezium=debezium,
            on_record_error=take_on_record_error(
                options,
                f"the kafka sink of {settings.table_name}",
                OnRecordError.DEAD_LETTER if has_letters else OnRecordError.STOP,
            ),
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
    if (parsed.on_record_error is OnRecordError.DEAD_LETTER) is not bool(parsed.dead_letter_topic):
        raise ConfigError(
            f"the kafka sink of {settings.table_name}: on_record_error: dead_letter and dead_letter_topic need each "
            "other"
        )
    if parsed.format not in FORMATS:
        allowed = ", ".join(FORMATS)
        raise ConfigError(f"the kafka sink of {settings.table_name}: format is {parsed.format!r}, allowed: {allowed}")
    for name, forms in (("schema_registry", (AVRO, PROTOBUF)), ("control_records", (JSON,))):
        if getattr(parsed, name) and parsed.format not in forms:
            raise ConfigError(f"the kafka sink of {settings.table_name}: {name} is for format: {' or '.join(forms)}")
    if parsed.schema_registry and not parsed.schema_registry.startswith(("http://", "https://")):
        raise ConfigError(
            f"the kafka sink of {settings.table_name}: schema_registry is {parsed.schema_registry!r}, allowed: an "
            "address that begins with http:// or https://"
        )
    if "@" in parsed.schema_registry.partition("://")[2].partition("/")[0]:
        raise ConfigError(
            f"the kafka sink of {settings.table_name}: schema_registry has a login in its address, which logs would "
            "show: set schema_registry_user and schema_registry_password, as a reference to a secret"
        )
    if parsed.format == PROTOBUF and not parsed.schema_registry:
        raise ConfigError(
            f"the kafka sink of {settings.table_name}: format: {PROTOBUF} needs schema_registry, which keeps the "
            "fields' numbers"
        )
    if parsed.debezium is not None and settings.mode is not ChangeMode.CHANGES:
        raise ConfigError(
            f"the kafka sink of {settings.table_name}: format: {DEBEZIUM} is for mode: {ChangeMode.CHANGES}"
        )


def parse_debezium_options(options: dict[str, str], topic: str, table: str) -> DebeziumOptions:
    """Take the settings of format `debezium` out of an entry's. Raises ConfigError."""
    has_transactions = parse_flag("provide.transaction.metadata", options.pop("provide.transaction.metadata", "false"))
    transaction_topic = options.pop("topic.transaction", f"{topic}.transaction")
    return DebeziumOptions(
        topic,
        table,
        options.pop("database", ""),
        has_schemas=parse_flag("schemas.enable", options.pop("schemas.enable", "true")),
        decimals=_take(options, "decimal.handling.mode", PRECISE, (PRECISE, STRING, DOUBLE)),
        has_tombstones=parse_flag("tombstones.on.delete", options.pop("tombstones.on.delete", "true")),
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


# --- Formats with a schema. Not in the sink's module: only a run with one needs its library in Spark's driver


def open_format(options: KafkaOptions, mode: ChangeMode) -> AvroFormat | ProtobufFormat | None:
    """Return the format of the options; None where it is no format with a schema of its own.

    Raises ConfigError where its library is not installed.
    """
    if options.format not in (AVRO, PROTOBUF):
        return None
    value, key = (
        SchemaRegistry(
            options.schema_registry,
            f"{options.topic}-{part}",
            options.schema_registry_user,
            options.schema_registry_password,
            options.timeout_s,
            options.format.upper(),
        )
        for part in ("value", "key")
    )
    try:
        # Not at the top: JSON must do without them.
        if options.format == PROTOBUF:
            from airflow_lake_provider.replication.formats.protobuf import ProtobufFormat

            return ProtobufFormat(mode, value, key)
        from airflow_lake_provider.replication.formats.avro import AvroFormat
    except ModuleNotFoundError as error:
        library = "protobuf and proto-schema-parser" if options.format == PROTOBUF else "fastavro"
        raise ConfigError(
            f"format: {options.format} needs {error.name} on Spark's driver: install {library}"
        ) from error
    if not options.schema_registry:
        return AvroFormat(mode)
    return AvroFormat(mode, value.register, key.register, value.find)


# --- A schema registry with Confluent's interface: a schema is registered under a subject, the answer is its number

_NO_VERSION = (40401, 40402)
"""The registry's own numbers for a subject, and for a version, that it does not have."""
_JSON = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """One subject of a registry. Uses the standard library alone: Spark's driver may have no other client."""

    url: str
    subject: str
    user: str = ""
    password: str = ""
    timeout_s: float = 30.0
    schema_type: str = "AVRO"
    """Of the schemas that are registered, in the registry's spelling."""

    def register(self, schema: str) -> int:
        """Return the number of a schema, registered if it is new.

        Raises SinkRefusedError for a schema that the subject's rule of compatibility forbids and for a refused login,
        SinkUnavailableError for a registry that does not answer.
        """
        # Without the word it is Avro, also to registries that know nothing else.
        body = {"schema": schema} | ({} if self.schema_type == "AVRO" else {"schemaType": self.schema_type})
        answer = self._ask(f"subjects/{self.subject}/versions", json.dumps(body).encode(), "id")
        return int(answer)

    def find(self, number: int) -> str:
        """Return the schema of a number. Raises as `register` does."""
        return str(self._ask(f"schemas/ids/{number}", None, "schema"))

    def find_latest(self) -> str | None:
        """Return the subject's last version; None before the first. Raises as `register` does."""
        try:
            return str(self._ask(f"subjects/{self.subject}/versions/latest", None, "schema"))
        except _NoVersionError:
            return None

    def _ask(self, path: str, body: bytes | None, wanted: str) -> Any:
        address = f"{self.url.rstrip('/')}/{path}"
        request = urllib.request.Request(address, body, {"Content-Type": _JSON, "Accept": _JSON})
        if self.user:
            login = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
            request.add_header("Authorization", f"Basic {login}")
        try:
            with urllib.request.urlopen(request, timeout=self.timeout_s) as response:
                answer: Any = json.loads(response.read())
            return answer[wanted]
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode("utf-8", "replace")
            reason = f"the schema registry answers {error.code} for {address}: {said}"
            if error.code == 404 and any(f'"error_code":{code}' in said.replace(" ", "") for code in _NO_VERSION):
                raise _NoVersionError(reason) from error
            if error.code in {408, 429} or error.code >= 500:
                raise SinkUnavailableError(reason) from error
            raise SinkRefusedError(reason) from error
        except (OSError, http.client.HTTPException) as error:
            raise SinkUnavailableError(f"the schema registry does not answer at {address}: {error}") from error
        except (ValueError, TypeError, KeyError) as error:
            raise SinkUnavailableError(f"the server at {address} is not a schema registry") from error


class _NoVersionError(SinkRefusedError):
    """The registry itself says that the subject has no version: any other 404 may be a wrong address."""
