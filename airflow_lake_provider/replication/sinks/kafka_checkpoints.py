"""Find a stream's checkpoint in its topic."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin as kafka_admin

from airflow_lake_provider.errors import CheckpointDamagedError, LakeError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.sinks.kafka_server import REFUSALS, as_lake_error, find_reason, open_client
from airflow_lake_provider.replication.spread import owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import KafkaError

    from airflow_lake_provider.sink_options.kafka import KafkaOptions

_SCAN_BACK_RECORDS = 64
TOPIC_HEADER = "topic"
"""Header of a checkpoint: the topic of its stream."""


class KafkaCheckpoints:
    """Reads the checkpoints of one stream; other streams may share the topic.

    `end_writers` ends what processes have open that sent buckets of the stream: they have died, or make way for the one
    that asks. Without it their transactions are waited for, as those of any other stream.
    """

    def __init__(
        self, options: KafkaOptions, stream: str, end_writers: Callable[[set[str]], None] | None = None
    ) -> None:
        self._options = options
        self._stream = stream
        self._end_writers = end_writers

    def find_last(self) -> str | None:
        """Return the stream's newest committed checkpoint: from the end of the topic, further back until found."""
        consumer = self._consumer("read_committed")
        everything = self._consumer("read_uncommitted")
        try:
            low, high = self._wait_until_stable(consumer, everything)
            back = _SCAN_BACK_RECORDS
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
            everything.close()
        return None

    def _consumer(self, isolation: str) -> Any:
        return open_client(
            confluent_kafka.Consumer,
            self._options,
            {
                "group.id": f"lake.{self._stream}",
                "isolation.level": isolation,
                "enable.auto.commit": "false",
                "auto.offset.reset": "error",
                "enable.partition.eof": "true",
                # At the end the broker waits for more before it says so, half a second unless set.
                "fetch.wait.max.ms": "20",
            },
        )

    def _wait_until_stable(self, consumer: Any, everything: Any) -> tuple[int, int]:
        """Return the end offsets of the committed part, once nothing is undecided that is in the topic now.

        An open transaction of another stream in a shared topic hides every later checkpoint, this stream's as well.
        """
        deadline = time.monotonic() + self._options.timeout_s
        end = self._watermarks(everything)[1]
        while True:
            low, high = self._watermarks(consumer)
            if high >= end:
                return low, high
            if self._end_writers is not None:
                self._end_writers(self._find_buckets(everything, high, end))
            if time.monotonic() > deadline:
                raise SinkUnavailableError(
                    f"topic {self._options.checkpoint_topic} has an open transaction at offset {high}, of another "
                    "stream: checkpoints behind it cannot be read until that stream runs again or the broker ends it"
                )
            time.sleep(0.2)

    def _find_buckets(self, everything: Any, start: int, end: int) -> set[str]:
        """Return the buckets of this stream that have a checkpoint among these offsets, committed or not."""
        everything.assign([confluent_kafka.TopicPartition(self._options.checkpoint_topic, 0, start)])
        found = set[str]()
        offset = start
        while offset < end:
            message = everything.poll(1.0)
            if message is None or message.error() is not None:
                break  # at the end, or it asks again
            offset = message.offset() + 1
            name = message.key().decode("utf-8", "replace")
            if name != self._stream and owner_of(name) == self._stream:
                found.add(name)
        return found

    def _watermarks(self, consumer: Any) -> tuple[int, int]:
        """Read the end offsets of the checkpoint topic; not every broker knows a new topic immediately."""
        partition = confluent_kafka.TopicPartition(self._options.checkpoint_topic, 0)
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                low, high = consumer.get_watermark_offsets(partition, timeout=min(self._options.timeout_s, 30))
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() in REFUSALS or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return low, high

    def _scan(self, consumer: Any, start: int) -> str | None:
        """Return the stream's last checkpoint from an offset on. Raises SinkRefusedError for a topic of another."""
        found = None
        others = set[str]()
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
                    self._require_sole(found, others)
                    return found
                raise self._as_lake_error(message.error())
            if message.key() == self._stream.encode():
                found = _text_of(message.value(), self._options.checkpoint_topic)
            elif dict(message.headers() or ()).get(TOPIC_HEADER) == self._options.topic.encode():
                # A bucket is its stream's own.
                other = owner_of(message.key().decode("utf-8", "replace"))
                (others.discard if message.value() is None else others.add)(other)

    def _require_sole(self, found: str | None, others: set[str]) -> None:
        """Refuse to begin in a topic that has a stream: neither keys nor messages name the table."""
        others = others - {owner_of(self._stream)}
        if found is None and others:
            raise SinkRefusedError(
                f"topic {self._options.topic} is stream {min(others)}'s, and readers could not distinguish its records "
                f"from those of {self._stream}: name another topic, or, when that stream is no more, send a record "
                f"with its name as the key, header {TOPIC_HEADER}={self._options.topic} and no value to "
                f"{self._options.checkpoint_topic}"
            )

    def _as_lake_error(self, error: KafkaError) -> LakeError:
        return as_lake_error(error, self._options, self._stream)


def read_committed(options: KafkaOptions, stream: str) -> Iterator[Any]:
    """Return the committed records that the topic has now, partition by partition, oldest first.

    Raises SinkUnavailableError when the broker does not answer for as long as `timeout_s`.
    """
    consumer = open_client(
        confluent_kafka.Consumer,
        options,
        {
            "group.id": f"lake.{stream}.verify",
            "isolation.level": "read_committed",
            "enable.auto.commit": "false",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": "true",
        },
    )
    try:
        topic = consumer.list_topics(options.topic, timeout=options.timeout_s).topics[options.topic]
        for partition in topic.partitions:
            begin = confluent_kafka.TopicPartition(options.topic, partition, confluent_kafka.OFFSET_BEGINNING)
            consumer.assign([begin])
            deadline = time.monotonic() + options.timeout_s
            while True:
                record = consumer.poll(1.0)
                if record is None:
                    if time.monotonic() > deadline:
                        raise SinkUnavailableError(f"topic {options.topic} could not be read to its end")
                    continue
                error = record.error()
                if error is None:
                    deadline = time.monotonic() + options.timeout_s
                    yield record
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    break
                else:
                    raise as_lake_error(error, options, stream)
    except confluent_kafka.KafkaException as failure:
        raise as_lake_error(failure.args[0], options, stream) from failure
    finally:
        consumer.close()


def _text_of(value: bytes | None, topic: str) -> str:
    if value is None:
        raise CheckpointDamagedError(f"topic {topic} holds an empty checkpoint")
    return value.decode("utf-8", "replace")


# --- The topics of a stream, existing or created; and how large a record may be


class KafkaTopics:
    """Reads and creates the topics of one stream."""

    def __init__(self, options: KafkaOptions, stream: str) -> None:
        self._options = options
        self._stream = stream
        self.most_letter_bytes = 0
        """The largest record in bytes that the topic for dead letters accepts; 0 without one."""

    def require(self) -> int:
        """Make sure that the topics exist; return the largest record in bytes that the topic accepts.

        Raises SinkUnavailableError, SinkRefusedError.
        """
        errors: list[KafkaError] = []
        admin = open_client(kafka_admin.AdminClient, self._options, {"error_cb": errors.append})
        options = self._options
        wanted = {options.topic: options.partitions, options.checkpoint_topic: 1}
        if options.dead_letter_topic:
            wanted[options.dead_letter_topic] = 1
        if options.debezium is not None and options.debezium.transaction_topic:
            wanted[options.debezium.transaction_topic] = 1
        known = self._list_topics(admin, errors)
        partitions = len(known.get(options.topic, range(options.partitions)))
        if options.debezium is not None and options.debezium.empties and partitions != 1:
            raise SinkRefusedError(
                f"topic {options.topic} has {partitions} partitions, and a truncate event in one of them would empty a "
                "target that has rows of the others already: use one partition, or leave skipped.operations: t"
            )
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
        policy = self._find_setting(admin, options.checkpoint_topic, "cleanup.policy")
        if policy not in {"", "compact"}:
            raise SinkRefusedError(
                f"checkpoint topic {options.checkpoint_topic} has cleanup.policy={policy}, so the broker would drop "
                "the checkpoint of a quiet table, and a snapshot would follow: set cleanup.policy=compact"
            )
        if options.dead_letter_topic:
            self.most_letter_bytes = self._find_most_bytes(admin, options.dead_letter_topic)
        return self._find_most_bytes(admin, options.topic)

    def find_identity(self) -> dict[str, str]:
        """Return what distinguishes the topic from one that is made later under its name, and where its keys are.

        Of a broker that does not number its topics: name and partitions.
        """
        admin = open_client(kafka_admin.AdminClient, self._options, {})
        topic = self._options.topic
        deadline = time.monotonic() + self._options.timeout_s
        wanted = confluent_kafka.TopicCollection([topic])
        while True:
            try:
                found = admin.describe_topics(wanted, request_timeout=15)[topic].result(timeout=20)
            except confluent_kafka.KafkaException as error:
                # Not every broker knows a new topic immediately.
                code = error.args[0].code()
                if code != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                    raise self._as_lake_error(error.args[0]) from error
                time.sleep(0.2)
            else:
                number = found.topic_id
                has_number = number is not None and any(
                    (number.get_most_significant_bits(), number.get_least_significant_bits())
                )
                numbered = {"topic's id": str(number)} if has_number else {}
                return {"topic": topic, "partitions": str(len(found.partitions)), **numbered}

    def _find_most_bytes(self, admin: Any, topic: str) -> int:
        # Of a topic that this client may not read: the default of both sides.
        found = int(self._find_setting(admin, topic, "max.message.bytes") or 1_000_000)
        return min(found, self._options.max_record_bytes)

    def _list_topics(self, admin: Any, errors: list[KafkaError]) -> dict[str, Any]:
        try:
            topics = admin.list_topics(timeout=min(self._options.timeout_s, 15)).topics
        except confluent_kafka.KafkaException as error:
            admin.poll(0)
            raise self._as_lake_error(find_reason(errors, error.args[0])) from error
        return {name: topic.partitions for name, topic in topics.items() if topic.error is None}

    def _create_topic(self, admin: Any, topic: str, partitions: int) -> None:
        config = {"cleanup.policy": "compact"} if topic == self._options.checkpoint_topic else {}
        new = kafka_admin.NewTopic(topic, partitions, self._options.replication_factor, config=config)
        try:
            admin.create_topics([new], operation_timeout=15)[topic].result(timeout=20)
        except confluent_kafka.KafkaException as error:
            if error.args[0].code() != confluent_kafka.KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._as_lake_error(error.args[0]) from error

    def _find_setting(self, admin: Any, topic: str, name: str) -> str:
        """Return a setting of a topic; empty when this client may not read it."""
        resource = kafka_admin.ConfigResource(kafka_admin.ConfigResource.Type.TOPIC, topic)
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                config = admin.describe_configs([resource], request_timeout=15)[resource].result(timeout=20)
            except confluent_kafka.KafkaException as error:
                code = error.args[0].code()
                if code in REFUSALS:
                    return ""
                # Not every broker knows a new topic immediately.
                if code != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                    raise self._as_lake_error(error.args[0]) from error
                time.sleep(0.2)
            else:
                return str(config[name].value)

    def _as_lake_error(self, error: KafkaError) -> LakeError:
        return as_lake_error(error, self._options, self._stream)
