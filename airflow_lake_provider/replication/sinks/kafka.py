"""Kafka: one transaction for each commit of the table (or part of a snapshot), the checkpoint inside it.

The checkpoint goes to a topic of its own (`<topic>.checkpoints`, compacted, one partition) and not into a consumer
group's offsets: those are forgotten after a week without a consumer. Consumers of the changes must read committed.
The transactional id is the stream's name, so a producer that opens it shuts out the one before (KIP-98).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin as kafka_admin

from airflow_lake_provider.errors import (
    CheckpointDamagedError,
    ConfigError,
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.change import message_of
from airflow_lake_provider.replication.checkpoint import to_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.change import Batch, Change
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import SinkSettings

# What a record needs beside key and value, with room to spare: lengths, headers, the batch's own header.
RECORD_OVERHEAD_BYTES = 512
_LOOK_BACK_RECORDS = 64
_REFUSALS = frozenset(
    {
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
        confluent_kafka.KafkaError._AUTHENTICATION,
    }
)
_FENCED = frozenset(
    {
        confluent_kafka.KafkaError._FENCED,
        confluent_kafka.KafkaError.PRODUCER_FENCED,
        confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
    }
)


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
    """Where records go that are too large; without it such a record stops the stream."""
    timeout_s: float
    """How long a broker that is away is waited for before the run gives up."""
    client: dict[str, str]


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
        )
    except KeyError as error:
        raise ConfigError(f"the kafka sink of {settings.table_name} needs the setting {error}") from error
    except ValueError as error:
        raise ConfigError(f"the kafka sink of {settings.table_name}: {error}") from error
    if options:
        raise ConfigError(f"the kafka sink of {settings.table_name} knows no setting {', '.join(sorted(options))}")
    return parsed


class KafkaSink:
    """Writes one stream to one topic, keyed by the record key, so that a key's changes stay in order."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        self._options = parse_options(settings)
        self._producer: Any = None
        self._in_transaction = False
        self._failure: LakeError | None = None
        self._max_bytes = 0

    def open(self) -> str | None:
        """Check the topics, shut out other producers of the stream, read the last committed checkpoint."""
        self._require_topics()
        timeout_s = self._options.timeout_s
        self._producer = confluent_kafka.Producer(
            {
                **self._client(),
                "transactional.id": f"lake.{self._settings.stream}",
                # The broker's highest value: a commit of many rows is one transaction.
                "transaction.timeout.ms": str(int(min(timeout_s, 900) * 1000) if timeout_s > 600 else 600_000),
                "linger.ms": self._options.client.get("linger.ms", "50"),
                "compression.type": self._options.client.get("compression.type", "lz4"),
                # librdkafka's own default of 1 MB refuses what a topic allows.
                "message.max.bytes": str(max(self._max_bytes, 1_000_000)),
            }
        )
        self._call(lambda: self._producer.init_transactions(timeout_s))
        return self._last_checkpoint()

    def write(self, batch: Batch) -> None:
        """Produce the changes within the transaction, begun by the first batch of a commit."""
        self._begin()
        headers = [
            ("commit", batch.commit.requested_time.encode()),
            ("generation", str(batch.generation).encode()),
        ]
        for change in batch.changes:
            value = message_of(change, batch.commit, self._settings.mode)
            self._produce(change, None if value is None else value.encode(), headers)
        self._raise_failure()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commit the transaction with the checkpoint in it."""
        self._begin()
        self._send(self._options.checkpoint_topic, self._settings.stream.encode(), to_text(checkpoint).encode(), [])
        # It flushes first. Not flushed apart: the client's flush breaks when the producer was fenced meanwhile.
        self._call(lambda: self._producer.commit_transaction(self._options.timeout_s))
        self._in_transaction = False

    def close(self) -> None:
        """Abort what is open."""
        if self._producer is None:
            return
        if self._in_transaction:
            self._in_transaction = False
            try:
                self._producer.purge()
                self._producer.abort_transaction(5)
            except confluent_kafka.KafkaException:
                # The broker aborts it when the next run opens the stream, or after the transaction's time-out.
                pass
        self._producer = None

    def _begin(self) -> None:
        if not self._in_transaction:
            self._failure = None
            self._call(self._producer.begin_transaction)
            self._in_transaction = True

    def _produce(self, change: Change, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        key = change.key.encode()
        size = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if size <= self._max_bytes:
            self._send(self._options.topic, key, value, headers)
            return
        what = f"record {change.key} has {size} bytes, topic {self._options.topic} takes {self._max_bytes}"
        if not self._options.dead_letter_topic:
            raise RecordRefusedError(
                f"{what}: raise max.message.bytes of the topic, or name a dead_letter_topic that gets the key instead"
            )
        self._send(self._options.dead_letter_topic, key, None, [*headers, ("error", what.encode())])

    def _send(self, topic: str, key: bytes, value: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                self._producer.produce(topic, key=key, value=value, headers=headers, on_delivery=self._delivered)
            except BufferError:
                # The client's queue is full: wait until the broker has taken some of it.
                self._producer.poll(0.1)
                self._raise_failure()
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(
                        f"the broker {self._options.bootstrap_servers} took nothing for {self._options.timeout_s:g} s"
                    ) from None
            except confluent_kafka.KafkaException as error:
                raise self._as_lake_error(error.args[0]) from error
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = self._as_lake_error(error)

    def _raise_failure(self) -> None:
        self._producer.poll(0)
        if self._failure is not None:
            raise self._failure

    def _call(self, call: Callable[[], Any]) -> Any:
        """Call the producer until it succeeds, as long as its errors say that the same call may be repeated."""
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                return call()
            except confluent_kafka.KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or time.monotonic() > deadline:
                    # What became of a single record says more than "must be aborted".
                    raise self._failure or self._as_lake_error(cause) from error
                time.sleep(0.2)

    def _as_lake_error(self, error: KafkaError) -> LakeError:
        where = f"{self._options.bootstrap_servers}, topic {self._options.topic}"
        code = error.code()
        if code in _FENCED:
            return SinkFencedError(f"another run has opened stream {self._settings.stream} ({where})")
        if code in _REFUSALS:
            return SinkRefusedError(f"Kafka refuses this client at {where}: {error.str()}")
        if code == confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE:
            return RecordRefusedError(f"Kafka refuses a record as too large at {where}: {error.str()}")
        return SinkUnavailableError(f"Kafka at {where}: {error.name()}: {error.str()}")

    def _client(self) -> dict[str, str | int | float | bool]:
        return {"bootstrap.servers": self._options.bootstrap_servers, "log_level": "2", **self._options.client}

    def _require_topics(self) -> None:
        admin = kafka_admin.AdminClient(self._client())
        options = self._options
        wanted = {options.topic: options.partitions, options.checkpoint_topic: 1}
        if options.dead_letter_topic:
            wanted[options.dead_letter_topic] = 1
        known = self._list_topics(admin)
        missing = [topic for topic in wanted if topic not in known]
        if missing and not options.create_topics:
            raise SinkUnavailableError(
                f"Kafka at {options.bootstrap_servers} has no topic {', '.join(missing)}: create it (the checkpoint "
                "topic with one partition and cleanup.policy=compact), or set create_topics: true"
            )
        for topic in missing:
            self._create_topic(admin, topic, wanted[topic])
        if len(known.get(options.checkpoint_topic, (0,))) != 1:
            raise SinkRefusedError(f"checkpoint topic {options.checkpoint_topic} must have one partition")
        self._max_bytes = self._topic_limit(admin)

    def _list_topics(self, admin: Any) -> dict[str, Any]:
        try:
            topics = admin.list_topics(timeout=min(self._options.timeout_s, 15)).topics
        except confluent_kafka.KafkaException as error:
            raise self._as_lake_error(error.args[0]) from error
        return {name: topic.partitions for name, topic in topics.items() if topic.error is None}

    def _create_topic(self, admin: Any, topic: str, partitions: int) -> None:
        config = {"cleanup.policy": "compact"} if topic == self._options.checkpoint_topic else {}
        new = kafka_admin.NewTopic(topic, partitions, self._options.replication_factor, config=config)
        try:
            admin.create_topics([new], operation_timeout=15)[topic].result(timeout=20)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._as_lake_error(error.args[0]) from error

    def _topic_limit(self, admin: Any) -> int:
        resource = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, self._options.topic)
        try:
            config = admin.describe_configs([resource], request_timeout=15)[resource].result(timeout=20)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() in _REFUSALS:
                return 1_000_000  # may not be asked: what both sides have when nobody set anything
            raise self._as_lake_error(error.args[0]) from error
        return int(config["max.message.bytes"].value)

    def _last_checkpoint(self) -> str | None:
        """Return the stream's newest committed checkpoint: from the end of the topic, further back until found."""
        consumer = confluent_kafka.Consumer(
            {
                **self._client(),
                "group.id": f"lake.{self._settings.stream}",
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
                "auto.offset.reset": "error",
                "enable.partition.eof": "true",
            }
        )
        try:
            low, high = self._watermarks(consumer)
            back = _LOOK_BACK_RECORDS
            while high > low:
                start = max(low, high - back)
                found = self._scan(consumer, start)
                if found is not None or start == low:
                    return found
                back *= 16
        except confluent_kafka.KafkaException as error:
            raise self._as_lake_error(error.args[0]) from error
        finally:
            consumer.close()
        return None

    def _watermarks(self, consumer: Any) -> tuple[int, int]:
        """Ask for the ends of the checkpoint topic; a topic made just now is not known everywhere at once."""
        partition = confluent_kafka.TopicPartition(self._options.checkpoint_topic, 0)
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                low, high = consumer.get_watermark_offsets(partition, timeout=min(self._options.timeout_s, 30))
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() in _REFUSALS or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return low, high

    def _scan(self, consumer: Any, start: int) -> str | None:
        found = None
        consumer.assign([confluent_kafka.TopicPartition(self._options.checkpoint_topic, 0, start)])
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            message = consumer.poll(1.0)
            if message is None:
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(f"topic {self._options.checkpoint_topic} could not be read to its end")
                continue
            if message.error() is not None:
                if message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    return found
                raise self._as_lake_error(message.error())
            if message.key() == self._settings.stream.encode():
                found = _text_of(message.value(), self._options.checkpoint_topic)


def _text_of(value: bytes | None, topic: str) -> str:
    if value is None:
        raise CheckpointDamagedError(f"topic {topic} holds an empty checkpoint")
    return value.decode("utf-8", "replace")
