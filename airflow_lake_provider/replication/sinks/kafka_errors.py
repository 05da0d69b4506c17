"""What Kafka's errors mean to a stream: try again, give up, or make way for another run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import confluent_kafka

from airflow_lake_provider.errors import (
    LakeError,
    RecordRefusedError,
    SinkFencedError,
    SinkRefusedError,
    SinkUnavailableError,
)

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

    from airflow_lake_provider.replication.sinks.kafka_options import KafkaOptions

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
    """Return the error of ours that says what happened, where, and by its class what to do."""
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
    """Return the error of a commit that was written for longer than the broker leaves a transaction open."""
    return SinkUnavailableError(
        f"the broker has ended the transaction of commit {commit}, stream {stream} ({options.bootstrap_servers}, topic "
        f"{options.topic}): it was open for {took_s:.0f} s, and kafka.transaction.timeout.ms is "
        f"{options.transaction_timeout_ms}: raise it, and the broker's transaction.max.timeout.ms where it is lower"
    )
