"""The topics of a stream: there, or made; and how large a record may be."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import confluent_kafka
import confluent_kafka.admin as kafka_admin

from airflow_lake_provider.errors import LakeError, SinkRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.sinks.kafka_errors import REFUSALS, as_lake_error

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.sinks.kafka_options import KafkaOptions


class KafkaTopics:
    """Asks the broker about the topics of one stream."""

    def __init__(self, options: KafkaOptions, stream: str) -> None:
        self._options = options
        self._stream = stream

    def require(self) -> int:
        """Make sure that the topics are there; return the largest record in bytes that the topic takes.

        Raises SinkUnavailableError, SinkRefusedError.
        """
        heard: list[KafkaError] = []
        settings: dict[str, Any] = {**self._options.client_settings, "error_cb": heard.append}
        admin = kafka_admin.AdminClient(settings)
        options = self._options
        wanted = {options.topic: options.partitions, options.checkpoint_topic: 1}
        if options.dead_letter_topic:
            wanted[options.dead_letter_topic] = 1
        known = self._list_topics(admin, heard)
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
        return self._topic_limit(admin)

    def _list_topics(self, admin: Any, heard: list[KafkaError]) -> dict[str, Any]:
        try:
            topics = admin.list_topics(timeout=min(self._options.timeout_s, 15)).topics
        except confluent_kafka.KafkaException as error:
            # The client goes on with a refused login until the time is over; the cause it only tells on the side.
            admin.poll(0)
            refused = next((told for told in heard if told.code() in REFUSALS), error.args[0])
            raise self._as_lake_error(refused) from error
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
        deadline = time.monotonic() + self._options.timeout_s
        while True:
            try:
                config = admin.describe_configs([resource], request_timeout=15)[resource].result(timeout=20)
            except confluent_kafka.KafkaException as error:
                code = error.args[0].code()
                if code in REFUSALS:
                    return 1_000_000  # may not be asked: what both sides have when nobody set anything
                # A topic made just now is not known everywhere at once.
                if code != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                    raise self._as_lake_error(error.args[0]) from error
                time.sleep(0.2)
            else:
                return int(config["max.message.bytes"].value)

    def _as_lake_error(self, error: KafkaError) -> LakeError:
        return as_lake_error(error, self._options, self._stream)
