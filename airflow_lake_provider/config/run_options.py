"""What a run may set that a user started by hand: lists of what is allowed, because the settings of Spark, Hudi and of
sinks are open sets.

Airflow lets such a user choose the run's conf and its id. Everything else comes from the tables file, whose owner may
set anything, or is named in `[lake] allowed_run_options`. No setting here names a place, an identity, a server, code or
a secret.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.config.owned_options import REFERENCE, executes_code
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.shared.hudi_settings import (
    CLEAN_INCREMENTAL,
    CLUSTERING_EXECUTION_STRATEGY_CLASS,
    COMPACTION_STRATEGY,
    LOCK_PROVIDER,
    WRITE_LOCK_FILESYSTEM_EXPIRE,
)
from airflow_lake_provider.shared.partition_filter import (
    FILTER_MODE,
    LAYOUT,
    MAX_GROUP_BYTES,
    MAX_GROUPS,
    REGEX,
    SELECTED,
    SINGLE_GROUP,
    SMALL_FILE_LIMIT,
    SORT_COLUMNS,
    STRATEGY_CLASS,
    TARGET_FILE_BYTES,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


def _patterns(*patterns: str) -> re.Pattern[str]:
    """Return one pattern of names in which `*` matches any text."""
    return re.compile("|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in patterns))


SPARK_CONN_ID = "spark_conn_id"
_OF_COLUMN = "column."
"""A sink's settings of one column, whose name may have any characters."""

_SPARK = _patterns(
    # Memory and cores
    *("spark.driver.memory", "spark.driver.memoryOverhead", "spark.driver.memoryOverheadFactor", "spark.driver.cores"),
    *("spark.executor.memory", "spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor"),
    *("spark.executor.cores", "spark.executor.pyspark.memory", "spark.driver.maxResultSize"),
    *("spark.memory.fraction", "spark.memory.storageFraction", "spark.memory.offHeap.*", "spark.task.cpus"),
    *("spark.kubernetes.driver.request.cores", "spark.kubernetes.driver.limit.cores"),
    *("spark.kubernetes.executor.request.cores", "spark.kubernetes.executor.limit.cores"),
    # Instances and queue
    *("spark.executor.instances", "spark.dynamicAllocation.*", "spark.cores.max", "spark.yarn.queue"),
    # Shuffles, parallelism, patience
    *("spark.default.parallelism", "spark.sql.shuffle.partitions", "spark.sql.adaptive.*", "spark.shuffle.compress"),
    *("spark.shuffle.spill.compress", "spark.shuffle.file.buffer", "spark.shuffle.service.enabled"),
    *("spark.reducer.maxSizeInFlight", "spark.sql.files.maxPartitionBytes", "spark.io.compression.codec"),
    *("spark.rdd.compress", "spark.speculation", "spark.speculation.*", "spark.task.maxFailures"),
    *("spark.network.timeout", "spark.executor.heartbeatInterval", "spark.rpc.askTimeout", "spark.locality.wait"),
    *("spark.serializer", "spark.kryoserializer.buffer.max", "spark.log.level"),
)
_SERIALIZERS = frozenset({"org.apache.spark.serializer.KryoSerializer", "org.apache.spark.serializer.JavaSerializer"})

# Not how a file keeps times or names: a service that rewrites rows would change what readers see.
_PARQUET = (
    *("hoodie.parquet.max.file.size", "hoodie.parquet.small.file.limit", "hoodie.parquet.block.size"),
    *("hoodie.parquet.page.size", "hoodie.parquet.compression.*", "hoodie.parquet.dictionary.enabled"),
    "hoodie.parquet.bloom.filter.enabled",
)

_HUDI = _patterns(
    *("hoodie.*.parallelism", "hoodie.memory.*.fraction", "hoodie.memory.*.max.size"),
    *_PARQUET,
    *("hoodie.orc.*", "hoodie.hfile.*"),
    *("hoodie.logfile.*", "hoodie.common.spillable.diskmap.type", "hoodie.common.diskmap.compression.enabled"),
    *(LOCK_PROVIDER, "hoodie.write.lock.client.*", "hoodie.write.lock.num_retries"),
    *("hoodie.write.lock.wait_time_ms", "hoodie.write.lock.wait_time_ms_between_retry"),
    *("hoodie.write.lock.max_wait_time_ms_between_retry", WRITE_LOCK_FILESYSTEM_EXPIRE),
)
# Not what merges the records (a payload, a merger, its handle): that is the table's.
_COMPACTION = (
    *(COMPACTION_STRATEGY, "hoodie.compaction.target.io", "hoodie.compaction.daybased.*"),
    *("hoodie.compaction.logfile.*", "hoodie.compaction.partition.path.regex", "hoodie.compaction.plan.generator"),
    *("hoodie.compaction.lazy.block.read", "hoodie.compaction.reverse.log.read"),
)
# Not the files that a table was made of: they lie outside it (`delete.bootstrap.base.file`).
_CLEAN = (
    *("hoodie.clean.parallelism", "hoodie.clean.incremental.enabled", "hoodie.clean.multiple.enabled"),
    *("hoodie.clean.allow.multiple", "hoodie.clean.optimize.using.local.engine.context"),
    *("hoodie.clean.max.commits.to.clean", "hoodie.clean.partition.filter.*"),
    *("hoodie.cleaner.parallelism", CLEAN_INCREMENTAL, "hoodie.cleaner.partition.filter.*"),
)
# Not where a rollback copies instants to: a path from the table's folder, which leads anywhere.
_ROLLBACK = ("hoodie.rollback.parallelism", "hoodie.rollback.using.markers", "hoodie.rollback.avoid.duplicate.plan")
# Not which pending plans are rolled back or expire, and not what writers do next to a plan (`updates.strategy`).
_CLUSTERING = (
    *("hoodie.clustering.max.parallelism", "hoodie.clustering.group.read.parallelism"),
    *(STRATEGY_CLASS, CLUSTERING_EXECUTION_STRATEGY_CLASS),
    *(FILTER_MODE, "hoodie.clustering.plan.generation.use.local.engine.context"),
    *(SORT_COLUMNS, MAX_GROUPS),
    *(SMALL_FILE_LIMIT, SELECTED),
    *("hoodie.clustering.plan.strategy.file.slices.sort.by", MAX_GROUP_BYTES),
    *("hoodie.clustering.plan.strategy.cluster.*.partition", "hoodie.clustering.plan.strategy.daybased.*"),
    *(
        TARGET_FILE_BYTES,
        REGEX,
    ),
    SINGLE_GROUP,
    LAYOUT,
    "hoodie.layout.optimize.curve.build.method",
    "hoodie.layout.optimize.build.curve.sample.size",
)
# Not what is archived, nor how long the manifests of readers are kept.
_ARCHIVE = (
    *("hoodie.archive.delete.parallelism", "hoodie.commits.archival.batch", "hoodie.archive.merge.*"),
    *("hoodie.timeline.compaction.batch.size", "hoodie.timeline.compaction.target.file.max.bytes"),
)
# Not the strategy, which decides what is deleted.
_TTL = ("hoodie.partition.ttl.strategy.partition.selected",)
_METADATA_COMPACTION = ("hoodie.metadata.compact.max.delta.*", "hoodie.metadata.max.reader.*")
# Not `hoodie.metadata.index.drop`, and no index but the one that is built.
_INDEXING = (
    *("hoodie.metadata.index.*.column.list", "hoodie.metadata.index.*.file.group.count"),
    *("hoodie.metadata.index.column.stats.max.columns.to.index", "hoodie.metadata.index.secondary.column"),
    *("hoodie.metadata.index.expression.column", "hoodie.metadata.index.expression.options"),
    *("hoodie.metadata.*record.index.*.filegroup.count", "hoodie.metadata.*record.level.index.*.filegroup.count"),
    *("hoodie.metadata.record.index.growth.factor", "hoodie.metadata.record.index.max.filegroup.size"),
    *("hoodie.metadata.bloom.filter.*", "hoodie.index.bloom.*"),
)
_HUDI_OF: Mapping[Service, re.Pattern[str]] = MappingProxyType(
    {
        Service.COMPACTION: _patterns(*_COMPACTION),
        Service.LOGCOMPACTION: _patterns(*_COMPACTION),
        Service.CLUSTERING: _patterns(*_CLUSTERING),
        Service.CLEAN: _patterns(*_CLEAN),
        Service.ARCHIVE: _patterns(*_ARCHIVE),
        Service.TTL: _patterns(*_TTL),
        Service.ROLLBACK: _patterns(*_ROLLBACK),
        Service.METACOMPACTION: _patterns(*_METADATA_COMPACTION),
        Service.INDEXING: _patterns(*_INDEXING),
    }
)
"""Hudi's tuning of one service; what a service sets itself is refused before (`owned_options`)."""

_SOURCE_LOCK = f"source.{LOCK_PROVIDER}"
_SINK = _patterns(
    # Where to, by name; a path is checked against [lake] sink_roots, a broker against the connection.
    *("conn_id", "topic", "checkpoint_topic", "dead_letter_topic", "topic.transaction", "table", "path"),
    *("bootstrap_servers", "create_topics", "partitions", "replication_factor", "timeout_s"),
    # What, and in which form
    *("on_record_error", "statement_timeout_s", "create", "evolve"),
    *("format", "columns", "partition_by", "control_records", "column.*", "database", "schemas.enable"),
    *("decimal.handling.mode", "tombstones.on.delete", "skipped.operations", "provide.transaction.metadata"),
    *("reader", "max_transaction_rows", "buckets", "buckets_from_rows", "snapshot_savepoint", "start"),
    *("heartbeat_s", "where"),
    # Of the clients
    *("kafka.compression.type", "kafka.compression.level", "kafka.linger.ms", "kafka.batch.size", "kafka.client.id"),
    *("kafka.batch.num.messages", "kafka.message.max.bytes", "kafka.queue.buffering.max.*", "kafka.request.timeout.ms"),
    *("kafka.message.timeout.ms", "kafka.delivery.timeout.ms", "kafka.transaction.timeout.ms"),
    *("kafka.socket.timeout.ms", "storage.anon", "hoodie.*.parallelism", *_PARQUET),
    # Of the table's own lock, for savepoints of snapshots
    *(_SOURCE_LOCK, "source.hoodie.write.lock.client.*"),
)


def may_set_spark(key: str, value: str) -> bool:
    """Whether a run by hand may set a setting of Spark."""
    if key == "spark.serializer":
        return value in _SERIALIZERS
    return _SPARK.fullmatch(key) is not None and _is_plain(key, value)


_OF_LOCK = frozenset({LOCK_PROVIDER, WRITE_LOCK_FILESYSTEM_EXPIRE, _SOURCE_LOCK})


def chooses_lock(options: Iterable[str]) -> bool:
    """Whether one of a run's options, Hudi's or a sink's, says by which lock it excludes the table's writers.

    With another class, or another age at which a lock counts as left, a run and the writers exclude no other.
    """
    return not _OF_LOCK.isdisjoint(options)


def may_set_hudi(service: Service, *, has_lock: bool = False) -> Callable[[str, str], bool]:
    """Return whether a run of a service by hand may set a setting of Hudi; `has_lock`: the tables file names a lock."""
    own = _HUDI_OF.get(service)

    def may_set(key: str, value: str) -> bool:
        if has_lock and key in _OF_LOCK:
            return False
        is_listed = _HUDI.fullmatch(key) is not None or (own is not None and own.fullmatch(key) is not None)
        return is_listed and _is_plain(key, value)

    return may_set


def may_set_sink(*, has_lock: bool = False) -> Callable[[str, str], bool]:
    """Return whether a run by hand may set an option of a sink; `has_lock`: the tables file names a lock."""

    def may_set(key: str, value: str) -> bool:
        if has_lock and key in _OF_LOCK:
            return False
        return _SINK.fullmatch(key) is not None and _is_plain(key, value)

    return may_set


def find_connection(given: str, configured: Collection[str], allowed: Collection[str]) -> str:
    """Return the Spark connection of a run that it may choose: one of the configured ones; empty for another one.

    A connection says where the job runs, and with whose login. `allowed` are as those of `find_unlisted`.
    """
    is_allowed = given in configured or any(fnmatchcase(SPARK_CONN_ID, pattern) for pattern in allowed)
    return given if is_allowed else ""


_PLAIN_NAME = re.compile(r"[\w.$-]+", re.ASCII)


def _is_plain(key: str, value: str) -> bool:
    # A key with `=`, a space or a line's end may be read as another key with a value, on a command line or in a file.
    if _PLAIN_NAME.fullmatch(key) is None and not (key.startswith(_OF_COLUMN) and key.isprintable()):
        return False
    # Spark replaces `${env:NAME}` and `${system:name}` in a setting by the worker's, secrets among them.
    is_text = value.isprintable() and "${" not in value
    return is_text and not value.startswith(REFERENCE) and not executes_code(key, value)


def find_unlisted(
    given: Mapping[str, str],
    in_tables_file: Mapping[str, str],
    may_set: Callable[[str, str], bool],
    allowed: Collection[str],
) -> list[str]:
    """Return those of a run's settings that it may not set.

    A setting with the tables file's value is that file's. `allowed` are names, with `*` as in file names.
    """
    return [
        key
        for key, value in given.items()
        if in_tables_file.get(key) != value
        and not any(fnmatchcase(key, pattern) for pattern in allowed)
        and not may_set(key, value)
    ]
