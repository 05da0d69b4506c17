"""The options of sink `kafka`, those of its formats included."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.sink_options.options import ON_RECORD_ERROR, OnRecordError
from airflow_lake_provider.sink_options.registry import REGISTRY, REGISTRY_CONNECTION, take_registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.sink_options.options import TakenOptions
    from airflow_lake_provider.sink_options.registry import RegistryOptions

FORMATS = JSON, AVRO, PROTOBUF, DEBEZIUM = "json", "avro", "protobuf", "debezium"
DECIMALS = PRECISE, STRING, DOUBLE = "precise", "string", "double"
SKIPPED = TRUNCATE, NOTHING = "t", "none"
MAX_CLIENT_BYTES = 1_000_000_000
"""The largest record in bytes that librdkafka can be set to send; a topic may be set to take more."""
_OURS = ("transactional.id", "enable.idempotence", "acks")
_NUMBERS = (
    ("transaction.timeout.ms", 2**31 - 1, "milliseconds above 0"),
    ("message.max.bytes", MAX_CLIENT_BYTES, "bytes above 0, at most 1000000000"),
    ("batch.size", 2**31 - 1, "bytes above 0"),
)
"""Settings of the client that the sink reckons with: its largest value, and what is allowed."""
_TOPIC = re.compile(r"(?:[\w.-]|\{\w*\}){1,249}", re.ASCII)


@dataclass(frozen=True, slots=True)
class DebeziumOptions:
    """What a reader's own settings must agree with; their names are Debezium's and Kafka Connect's."""

    topic: str
    """Names the schemas of key, row and envelope, and is `source.name`."""
    table: str
    database: str = ""
    """`source.db`; the table's own unless the entry says otherwise."""
    has_schemas: bool = True
    """`schemas.enable`: each key and value brings its schema, as the readers' converter expects unless it is off."""
    decimals: str = PRECISE
    """`decimal.handling.mode`: precise (Connect's own type), string or double."""
    has_tombstones: bool = True
    """`tombstones.on.delete`: a record without a value follows each delete, for compacted topics."""
    skipped: str = TRUNCATE
    """`skipped.operations`: `t` (truncate), or `none`: a new snapshot begins with an event that empties the target."""
    transaction_topic: str = ""
    """`topic.transaction`, with `provide.transaction.metadata`: where each commit's begin and end go; empty without."""

    @property
    def empties(self) -> bool:
        """Whether a new snapshot begins with an event of its own. It is right in a topic of one partition alone."""
        return self.skipped == NOTHING


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
    client: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    format: str = JSON
    """One of `FORMATS`. The key is JSON, byte for byte the row's name, but by a registry it has the format's schema."""
    registry: RegistryOptions | None = None
    """Protobuf needs it; without it Avro's schema is in each message."""
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
    def max_record_bytes(self) -> int:
        """The largest record in bytes that the client sends, whatever the topic takes: `kafka.message.max.bytes`."""
        return int(self.client.get("message.max.bytes", MAX_CLIENT_BYTES))

    @property
    def client_settings(self) -> dict[str, str | int | float | bool]:
        """The settings of each client of the broker."""
        return {"bootstrap.servers": self.bootstrap_servers, "log_level": "2", **self.client}


def take_kafka(options: TakenOptions, mode: str, table: str = "", database: str = "") -> KafkaOptions:
    """Take the options. Raises OptionError for missing ones, and for those that would lose data."""
    client = options.below("kafka.")
    for name in _OURS:
        if name in client:
            options.refuse(f"must not have kafka.{name} set: exactly-once delivery depends on it", f"kafka.{name}")
    for name, most, what in _NUMBERS:
        text = client.get(name, "1")
        if not (text.isdecimal() and text.isascii() and 0 < int(text) <= most):
            options.wrong(f"kafka.{name}", text, what)
    _require_login(options, client)
    has_letters = options.has("dead_letter_topic")
    topic = options.required("topic")
    form = options.choice("format", JSON, FORMATS)
    taken = KafkaOptions(
        bootstrap_servers=options.required("bootstrap_servers"),
        topic=topic,
        checkpoint_topic=options.text("checkpoint_topic", f"{topic}.checkpoints"),
        create_topics=options.flag("create_topics"),
        partitions=options.count("partitions", 1, "partitions"),
        replication_factor=options.count("replication_factor", -1, "replicas", (-1,)),
        dead_letter_topic=options.text("dead_letter_topic"),
        timeout_s=options.seconds("timeout_s", 60.0),
        client=client,
        format=form,
        registry=take_registry(options),
        control_records=options.flag("control_records"),
        debezium=_take_debezium(options, topic, table, database) if form == DEBEZIUM else None,
        on_record_error=options.on_record_error(OnRecordError.DEAD_LETTER if has_letters else OnRecordError.STOP),
    )
    _require_names(options, taken)
    _require_fit(options, taken, mode)
    return taken


def _require_login(options: TakenOptions, client: Mapping[str, str]) -> None:
    """Refuse a login that never succeeds. A connection may bring what the entry lacks."""
    if not options.knows("bootstrap_servers"):
        return
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms", "")
    if client.get("security.protocol", "").upper().startswith("SASL") and not mechanism:
        options.refuse(
            "has no kafka.sasl.mechanism, and the client would take GSSAPI (Kerberos): set it",
            "kafka.security.protocol",
        )
    is_unsigned = client.get("enable.sasl.oauthbearer.unsecure.jwt", "").lower() == "true"
    if mechanism == "OAUTHBEARER" and client.get("sasl.oauthbearer.method") != "oidc" and not is_unsigned:
        options.refuse(
            "has nothing that gets a token for kafka.sasl.mechanism: OAUTHBEARER: set kafka.sasl.oauthbearer.method: "
            "oidc, with client.id, client.secret and token.endpoint.url",
            "kafka.sasl.mechanism",
        )


def _take_debezium(options: TakenOptions, topic: str, table: str, database: str) -> DebeziumOptions:
    has_transactions = options.flag("provide.transaction.metadata")
    transaction_topic = options.text("topic.transaction", f"{topic}.transaction")
    return DebeziumOptions(
        topic,
        table,
        options.text("database", database),
        has_schemas=options.flag("schemas.enable", default=True),
        decimals=options.choice("decimal.handling.mode", PRECISE, DECIMALS),
        has_tombstones=options.flag("tombstones.on.delete", default=True),
        skipped=options.choice("skipped.operations", TRUNCATE, SKIPPED),
        transaction_topic=transaction_topic if has_transactions else "",
    )


def _require_names(options: TakenOptions, taken: KafkaOptions) -> None:
    named = {name: getattr(taken, name) for name in ("topic", "checkpoint_topic", "dead_letter_topic")}
    if taken.debezium is not None:
        named["topic.transaction"] = taken.debezium.transaction_topic
    for name, text in named.items():
        if text and not _TOPIC.fullmatch(text):
            options.wrong(name, text, "letters, digits, '.', '_' and '-'")
        # A table whose name is part of a topic would write into what all streams share.
        twice = next((other for other in named if other != name and text and named[other] == text), None)
        if twice is not None:
            options.refuse(f"has one topic {text!r} as {name} and {twice}: name another one", name)


def _require_fit(options: TakenOptions, taken: KafkaOptions, mode: str) -> None:
    if (taken.on_record_error is OnRecordError.DEAD_LETTER) is not bool(taken.dead_letter_topic):
        options.refuse("needs on_record_error: dead_letter and dead_letter_topic together", ON_RECORD_ERROR)
    for name, is_set, forms in (
        (REGISTRY, taken.registry is not None, (AVRO, PROTOBUF)),
        ("control_records", taken.control_records, (JSON,)),
    ):
        if is_set and taken.format not in forms:
            options.refuse(f"has {name}, and {name} is for format: {' or '.join(forms)}", name)
    if taken.format == PROTOBUF and taken.registry is None:
        options.refuse(
            f"needs {REGISTRY} or {REGISTRY_CONNECTION} for format: {PROTOBUF}: it keeps the fields' numbers", "format"
        )
    if taken.debezium is not None and mode != "changes":
        options.refuse(f"has mode: {mode}, and format: {DEBEZIUM} is for mode: changes", "format")
