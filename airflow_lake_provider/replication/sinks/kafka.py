"""Kafka: one transaction for each commit of the table (or part of it, or of a snapshot), the checkpoint inside it.

The checkpoint goes to a topic of its own (`<topic>.checkpoints`, compacted, one partition) and not into a consumer
group's offsets: Kafka drops those after a week without a consumer. Consumers of the changes must read committed.
The transactional id is the stream's name, so a producer that opens it fences the one before (KIP-98).
"""

from __future__ import annotations

import json
import logging
import time
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import confluent_kafka

from airflow_lake_provider import __version__
from airflow_lake_provider.errors import (
    ConfigError,
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)
from airflow_lake_provider.replication.change import (
    ChangeMode,
    canonical,
    checksum_text,
    load_json,
    message_of,
    print_json,
    records_of,
)
from airflow_lake_provider.replication.checkpoint import from_text, to_text
from airflow_lake_provider.replication.formats.debezium import DebeziumFormat, read_after, read_key
from airflow_lake_provider.replication.scope import TargetState
from airflow_lake_provider.replication.sink import json_row
from airflow_lake_provider.replication.sinks.kafka_checkpoints import (
    TOPIC_HEADER,
    KafkaCheckpoints,
    KafkaTopics,
    read_committed,
)
from airflow_lake_provider.replication.sinks.kafka_server import (
    PURGED,
    as_lake_error,
    open_client,
    open_format,
    transaction_overdue,
)
from airflow_lake_provider.shared.plain_text import first_line, show_key
from airflow_lake_provider.sink_options.kafka import PRECISE, take_kafka
from airflow_lake_provider.sink_options.options import OnRecordError, TakenOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.change import Batch, Change, CommitRef
    from airflow_lake_provider.replication.checkpoint import Checkpoint
    from airflow_lake_provider.replication.sink import Row, SinkSettings

log = logging.getLogger(__name__)

# The size of a record besides key and value, with a margin: lengths, headers, the batch's own header.
RECORD_OVERHEAD_BYTES = 512
_BY_KEY = -1
"""Librdkafka's name for a record's partition that the partitioner decides."""
CONTROL = "control"
"""The header, and the only field of the key, of a record that is no change. Its value says how far the stream is."""
SOURCE = "source"
"""The header that names database, table and schema of a record, as JSON; the checkpoint topic has that schema."""
SNAPSHOT_BEGINS = "snapshot_begins"
SNAPSHOT_ENDS = "snapshot_ends"
RESOLVED = "resolved"


def transactional_id(stream: str) -> str:
    """Return the name by which the broker knows the one producer of a stream."""
    return f"lake.{stream}"


class KafkaSink:
    """Writes one stream to one topic, keyed by the record key, so that a key's changes stay in order."""

    def __init__(self, settings: SinkSettings) -> None:
        self._settings = settings
        options = TakenOptions(settings.options, f"the kafka sink of {settings.table_name}")
        self._options = take_kafka(options, settings.mode, settings.table_name, settings.database)
        options.end()
        self._producer: Any = None
        self._in_transaction = False
        self._began_s = 0.0
        self._commit = ""
        self._failure: LakeError | None = None
        self._max_bytes = self._most_letter_bytes = 0
        self._target = TargetState()
        self._typed = open_format(self._options, settings.mode)
        debezium = self._options.debezium
        self._debezium = None if debezium is None else DebeziumFormat(debezium, __version__)
        self._source_schema = ""
        self._source = list[tuple[str, bytes]]()
        self._partitions = 0
        """Of the topic, where each of them gets control records."""
        self._generation_begun: int | None = None
        """The generation of a snapshot that is not whole yet."""
        self._announced: CommitRef | None = None
        """The commit whose begin is in the transaction topic, and whose end is not."""

    def open(self) -> str | None:
        """Check the topics, fence other producers of the stream, read the last committed checkpoint."""
        topics = KafkaTopics(self._options, self._settings.stream)
        self._max_bytes = topics.require()
        self._most_letter_bytes = topics.most_letter_bytes
        self._target = TargetState(topics.find_identity())
        timeout_s = self._options.timeout_s
        self._producer = open_client(
            confluent_kafka.Producer,
            self._options,
            {
                "transactional.id": transactional_id(self._settings.stream),
                # A commit of many rows is one transaction.
                "transaction.timeout.ms": str(self._options.transaction_timeout_ms),
                "linger.ms": self._options.client.get("linger.ms", "50"),
                "compression.type": self._options.client.get("compression.type", "lz4"),
                # Java's own: a key is in the partition in which Kafka Streams and Connect would put it.
                "partitioner": self._options.client.get("partitioner", "murmur2_random"),
                # librdkafka's own default of 1 MB refuses what a topic allows.
                "message.max.bytes": str(max(self._max_bytes, self._most_letter_bytes, 1_000_000)),
                # And a topic that allows less refuses a batch of small records as it does a record.
                "batch.size": str(self._find_batch_bytes()),
                # One function for all, called for those that failed: a call for each record takes as long as sending.
                "delivery.report.only.error": True,
                "on_delivery": self._delivered,
            },
        )
        self._call(lambda: self._producer.init_transactions(timeout_s))
        text = KafkaCheckpoints(self._options, self._settings.stream, self.end_writers).find_last()
        known = from_text(text) if text is not None else None
        if self._options.control_records:
            found = self._call(lambda: self._producer.list_topics(self._options.topic, timeout_s))
            self._partitions = len(found.topics[self._options.topic].partitions)
            self._generation_begun = known.generation if known is not None and known.snapshot is not None else None
        if self._debezium is not None and self._transaction_topic and known is not None and known.part is not None:
            # A transaction of Debezium's is the commit, however many of the broker's it takes.
            self._announced = known.commit
            self._debezium.continue_transaction(known.part.rows)
        return text

    def _find_batch_bytes(self) -> int:
        bounds = [self._max_bytes, self._most_letter_bytes] if self._most_letter_bytes else [self._max_bytes]
        wanted = int(self._options.client.get("batch.size", 1_000_000))
        return max(1, min(wanted, min(bounds) - RECORD_OVERHEAD_BYTES))

    def find_target(self) -> TargetState:
        """Return the topic as the broker numbers it, with its partitions: in more of them a key is in another one."""
        return self._target

    def write(self, batch: Batch) -> None:
        """Produce the changes within the transaction, begun by the first batch of a commit."""
        self._commit = batch.commit.requested_time
        self._begin()
        headers = [
            ("commit", batch.commit.requested_time.encode()),
            ("generation", str(batch.generation).encode()),
            *self._source_header(batch.schema),
        ]
        if self._debezium is not None:
            self._announce(self._debezium, batch)
            for key, value in self._debezium.begin(batch):
                self._send(self._options.topic, None if key is None else key.encode(), value.encode(), headers)
        if batch.begins_snapshot:
            self._generation_begun = batch.generation
            self._control(SNAPSHOT_BEGINS, batch.commit, batch.generation)
        if self._debezium is None and self._typed is None:
            self._produce_json(batch, headers)
        else:
            for change in batch.changes:
                self._produce(change, batch, headers)
        self._raise_failure()

    def commit(self, checkpoint: Checkpoint) -> None:
        """Commit the transaction with the checkpoint in it."""
        self._commit = checkpoint.commit.requested_time if checkpoint.commit is not None else ""
        self._begin()
        if self._debezium is not None and self._announced is not None and checkpoint.part is None:
            self._send_boundary(self._debezium.end_transaction(self._announced))
            self._announced = None
        if checkpoint.snapshot is None and not checkpoint.is_within_commit and checkpoint.commit is not None:
            if self._generation_begun == checkpoint.generation:
                self._control(SNAPSHOT_ENDS, checkpoint.commit, checkpoint.generation)
            more = {"floor": checkpoint.watermark, **({"at": checkpoint.at} if checkpoint.at else {})}
            self._control(RESOLVED, checkpoint.commit, checkpoint.generation, more)
            self._generation_begun = None
        mine = [(TOPIC_HEADER, self._options.topic.encode())]
        self._send(self._options.checkpoint_topic, self._settings.stream.encode(), to_text(checkpoint).encode(), mine)
        # It flushes first. No separate flush: the client's flush breaks when the producer was fenced meanwhile.
        self._call(lambda: self._producer.commit_transaction(self._options.timeout_s))
        self._in_transaction = False

    def find_bucket_obstacle(self) -> str:
        """Return that Debezium numbers the events of a commit one after another, where it does."""
        return "provide.transaction.metadata numbers a commit's events in one order" if self._transaction_topic else ""

    def find_checkpoint(self, stream: str) -> str | None:
        """Return the last committed checkpoint of a stream that writes to the same topic."""
        return KafkaCheckpoints(self._options, stream).find_last()

    def end_writers(self, streams: Collection[str]) -> None:
        """Fence the producers of these streams; their transactions are aborted."""
        for stream in streams:
            rival = open_client(confluent_kafka.Producer, self._options, {"transactional.id": transactional_id(stream)})
            self._call(partial(rival.init_transactions, self._options.timeout_s))

    def read_rows(self, key: Sequence[str], checkpoint: Checkpoint) -> Iterator[Row]:
        """Return the committed records of the checkpoint's generation that the topic still has, partition by partition.

        Raises ConfigError for Debezium's events where they do not say what they hold, and SinkRefusedError for a record
        of another producer.
        """
        _ = key
        self._require_readable()
        for record in read_committed(self._options, self._settings.stream):
            headers = dict(record.headers() or ())
            # A truncate event of Debezium has no key, and stands before the rows of a generation.
            if CONTROL in headers or record.key() is None:
                continue
            try:
                is_row = int(headers.get("generation", b"0")) >= checkpoint.generation
                row = self._row_of(record.key(), record.value()) if is_row else None
            except LakeError:
                raise
            except Exception as error:  # the decoders of four formats raise whatever foreign bytes make them do
                place = f"topic {self._options.topic}, partition {record.partition()}, offset {record.offset()}"
                raise SinkRefusedError(
                    f"{place}: a record that this stream cannot have written: {first_line(error, 200)}; find its "
                    "producer, and take the right to write to the topic from it"
                ) from error
            if row is not None:
                yield row

    def _row_of(self, key: bytes, value: bytes | None) -> Row:
        if self._typed is not None:
            reader = self._typed.reader
            return canonical(reader.key(key)), None if value is None else reader.after(value)
        if self._debezium is not None:
            return canonical(read_key(key.decode())), None if value is None else read_after(value.decode())
        body = None if value is None else load_json(value.decode())
        after = body["after"] if body and self._settings.mode is ChangeMode.CHANGES else body
        return print_json(load_json(key.decode())), after

    def _require_readable(self) -> None:
        debezium = self._options.debezium
        if debezium is not None and not (debezium.has_schemas and debezium.decimals == PRECISE):
            raise ConfigError(
                f"topic {self._options.topic} has Debezium's events without what their values are: rows are read back "
                "with schemas.enable: true and decimal.handling.mode: precise"
            )

    def as_read(self, change: Change) -> Row:
        """Return a row as its record has it."""
        is_json = self._typed is None and self._debezium is None
        name, row = json_row(change)
        return (name if is_json else canonical(load_json(change.key))), row

    def close(self) -> None:
        """Abort the open transaction."""
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

    def _source_header(self, schema: str) -> list[tuple[str, bytes]]:
        """Return the header that says where a record is from; an event of Debezium has it inside."""
        if self._debezium is not None:
            return []
        if schema != self._source_schema or not self._source:
            settings = self._settings
            names = {"database": settings.database, "table": settings.table_name, "schema_id": checksum_text(schema)}
            self._source_schema = schema
            self._source = [(SOURCE, json.dumps(names).encode())]
        return self._source

    def _records_of(self, change: Change, batch: Batch) -> list[tuple[bytes, bytes | None]]:
        if self._debezium is not None:
            records = self._debezium.records_of(change, batch)
            return [(key.encode(), None if text is None else text.encode()) for key, text in records]
        if self._typed is not None:
            message = self._typed.message_of(change, batch.commit, batch.schema)
            return [(self._typed.key_of(change, batch.schema), message)]
        return list(records_of([change], batch.commit, self._settings.mode))

    def _control(
        self, kind: str, commit: CommitRef, generation: int, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Send a record to each partition; `more` are further fields of its value."""
        body = {CONTROL: kind, "commit": commit.requested_time, "completed": commit.completed_time}
        text = json.dumps({**body, "generation": generation, **more})
        headers = [("generation", str(generation).encode()), (CONTROL, kind.encode())]
        for partition in range(self._partitions):
            # A key, or a compacted topic refuses it; of each kind the last one stays there.
            self._send(
                self._options.topic, json.dumps({CONTROL: kind}).encode(), text.encode(), headers, partition=partition
            )

    def _announce(self, debezium: DebeziumFormat, batch: Batch) -> None:
        if self._announced != batch.commit and self._transaction_topic:
            self._announced = batch.commit
            self._send_boundary(debezium.begin_transaction(batch.commit))

    def _send_boundary(self, record: tuple[str, str]) -> None:
        self._send(self._transaction_topic, record[0].encode(), record[1].encode(), [])

    @property
    def _transaction_topic(self) -> str:
        return "" if self._options.debezium is None else self._options.debezium.transaction_topic

    def _begin(self) -> None:
        if not self._in_transaction:
            self._failure = None
            self._call(self._producer.begin_transaction)
            self._in_transaction = True
            self._began_s = time.monotonic()

    def _produce_json(self, batch: Batch, headers: list[tuple[str, bytes]]) -> None:
        """Produce all changes of a batch. Each line here runs once for each row; what is seldom is `_produce`'s."""
        topic = self._options.topic
        produce = self._producer.produce
        most_bytes = self._max_bytes - RECORD_OVERHEAD_BYTES
        for at, (key, value) in enumerate(records_of(batch.changes, batch.commit, self._settings.mode)):
            if len(key) + (0 if value is None else len(value)) > most_bytes:
                self._produce(batch.changes[at], batch, headers)
                continue
            try:
                produce(topic, value, key, headers=headers)
            except (BufferError, confluent_kafka.KafkaException):
                # The queue is full, or the producer has failed: the second try finds out, and waits for room.
                self._send(topic, key, value, headers)

    def _produce(self, change: Change, batch: Batch, headers: list[tuple[str, bytes]]) -> None:
        try:
            records = self._records_of(change, batch)
            for key, value in records:
                self._require_size(change, len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES)
        except RecordRefusedError as error:
            if self._options.on_record_error is OnRecordError.STOP:
                shown = show_key(change.key)
                raise RecordRefusedError(
                    f"record {shown}: {error}; a dead_letter_topic would get it, and on_record_error: skip leaves "
                    "it out, and the others continue"
                ) from error
            log.warning("stream %s leaves record %s out: %s", self._settings.stream, change.key, error)
            if self._options.on_record_error is OnRecordError.DEAD_LETTER:
                self._send_letter(change, batch, headers, str(error))
        else:
            for key, value in records:
                self._send(self._options.topic, key, value, headers)

    def _send_letter(self, change: Change, batch: Batch, headers: list[tuple[str, bytes]], why: str) -> None:
        """Send what was refused, as JSON whatever the topic's format is; without it where it is too large there too."""
        key = change.key.encode()
        record = message_of(change, batch.commit, ChangeMode.CHANGES)
        value = None if record is None else record.encode()
        most = self._most_letter_bytes
        if value is not None and len(key) + len(value) + len(why) + RECORD_OVERHEAD_BYTES > most:
            value, why = None, f"{why}; it is not here, since this topic takes {most} bytes (max.message.bytes)"
        self._send(self._options.dead_letter_topic, key, value, [*headers, ("error", why.encode())])

    def _require_size(self, change: Change, size: int) -> None:
        if size > self._max_bytes:
            shown = show_key(change.key)
            raise RecordRefusedError(
                f"record {shown} has {size} bytes, topic {self._options.topic} takes {self._max_bytes} "
                "(max.message.bytes of the topic, or kafka.message.max.bytes)"
            )

    def _send(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes]],
        *,
        partition: int = _BY_KEY,
    ) -> None:
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                self._producer.produce(topic, key=key, value=value, headers=headers, partition=partition)
            except BufferError:
                # The client's queue is full: wait until the broker has taken some of it.
                self._raise_failure(wait_s=0.1)
                if time.monotonic() > deadline:
                    raise SinkUnavailableError(
                        f"broker {self._options.bootstrap_servers} accepted nothing for {self._options.timeout_s:g} s"
                    ) from None
            except confluent_kafka.KafkaException as error:
                raise self._as_lake_error(error.args[0]) from error
            else:
                return

    def _delivered(self, error: KafkaError | None, message: Any) -> None:
        # A purged record is not the cause: the transaction's own error names why it was aborted.
        if error is not None and error.code() not in PURGED and self._failure is None:
            # This does not poll for the cause: a poll calls this function.
            self._failure = self._error_of(error)

    def _raise_failure(self, wait_s: float = 0.0) -> None:
        try:
            self._producer.poll(wait_s)
        except confluent_kafka.KafkaException as error:
            # A poll raises once what made the producer unusable.
            raise self._error_of(error.args[0]) from error
        if self._failure is not None:
            raise self._failure

    def _call(self, call: Callable[[], Any]) -> Any:
        """Call the producer until it succeeds, as long as its errors allow repeating the same call."""
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                return call()
            except confluent_kafka.KafkaException as error:
                cause = error.args[0]
                if not cause.retriable() or time.monotonic() > deadline:
                    # The error of a single record has more detail than "must be aborted".
                    raise self._failure or self._as_lake_error(cause) from error
                time.sleep(0.2)

    def _as_lake_error(self, error: KafkaError) -> LakeError:
        if error.code() == confluent_kafka.KafkaError._FATAL:
            error = self._fatal_cause(error)
        return self._error_of(error)

    def _error_of(self, error: KafkaError) -> LakeError:
        found = as_lake_error(error, self._options, self._settings.stream)
        took_s = time.monotonic() - self._began_s
        allowed_s = self._options.transaction_timeout_ms / 1000
        if isinstance(found, SinkFencedError) and self._in_transaction and took_s > allowed_s:
            # The broker fences the producer of an overdue transaction in the same way as a rival.
            return transaction_overdue(self._options, self._settings.stream, self._commit, took_s)
        return found

    def _fatal_cause(self, error: KafkaError) -> KafkaError:
        """Return what made the producer unusable (usually a rival's fence), which a poll reports."""
        try:
            self._producer.poll(0)
        except confluent_kafka.KafkaException as cause:
            return cast("KafkaError", cause.args[0])
        return error
