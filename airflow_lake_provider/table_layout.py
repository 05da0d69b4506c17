"""What only a table's writers know of its layout, read from the table itself: its buckets, and whether rows have keys.

Hudi keeps the index in the settings of each writer. A client without them takes a table with a bucket index for one
without, and gives new file groups names in which writers find no bucket. Pure; standard library only, for the planner
and for the jobs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import REWRITES, TTL_COLUMN, Mode, Service
from airflow_lake_provider.shared.hudi_settings import (
    CLUSTERING_EXECUTION_STRATEGY_CLASS,
    CONCURRENCY_MODE,
    CONFLICT_RESOLUTION_STRATEGY,
    MERGE_ON_READ,
    MERGER_CLASSES,
    RECORD_MERGE_MODE,
    TABLE_KEY_GENERATOR,
    TABLE_PARTIAL_UPDATES,
    TABLE_PARTITION_FIELDS,
    TABLE_RECORD_KEY,
    TABLE_TYPE,
    WRITE_PARTITION_FIELDS,
    WRITE_RECORD_KEY,
)
from airflow_lake_provider.shared.partition_filter import STRATEGY_CLASS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

HASHING_METADATA = ".hoodie/.bucket_index/consistent_hashing_metadata"
"""Folder below the base path in which writers with consistent hashing keep which file group has which bucket."""

NON_BLOCKING = "NON_BLOCKING_CONCURRENCY_CONTROL"
INDEX_TYPE = "hoodie.index.type"
BUCKET_ENGINE = "hoodie.index.bucket.engine"
META_FIELDS = "hoodie.populate.meta.fields"
MERGE_STRATEGY_ID = "hoodie.record.merge.strategy.id"
OLD_MERGE_STRATEGY_ID = "hoodie.compaction.record.merger.strategy"
"""What Hudi called it before version 1.0."""
PAYLOAD_STRATEGY_ID = "00000000-0000-0000-0000-000000000000"
_STRATEGIES_OF_HUDI = frozenset(
    {"", PAYLOAD_STRATEGY_ID, "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", "ce9acb64-bde0-424c-9b91-f6ebba25356d"}
)
"""By a payload's rules, by event time and by commit time (`HoodieRecordMerger`)."""
CLUSTER_OPERATION = "CLUSTER"
"""What the commit metadata of a clustering says that it is; its file ids may be of a client that knew no buckets."""

_BUCKET_NUMBER = re.compile(r"00\d{6}")
"""Beginning of a file id with a bucket's number. Of random file ids one in 4,000 begins like this."""

_FIXED_NAME = re.compile(r"\d{8}-0000-0000-0000-000000000000")
"""Beginning of a file id that follows from the bucket's number alone."""


class Buckets(StrEnum):
    """How a table's writers distribute keys over file groups."""

    NONE = "none"
    SIMPLE = "simple"
    """A fixed number of buckets, whose number begins each file id; also with a number for each partition."""
    FIXED_NAMES = "simple, with one fixed file id for each bucket"
    """As SIMPLE; writers that do not block each other name the file group of a bucket alike."""
    CONSISTENT = "consistent hashing"


def find_newest_file_ids(writes: Iterable[tuple[str, Callable[[], Iterable[str]]]]) -> frozenset[str]:
    """Return the file ids of the newest write that wrote files, clusterings aside; empty when there is none.

    `writes` are operation and file ids of the completed writes, newest first.
    """
    for operation, read_file_ids in writes:
        file_ids = frozenset() if operation == CLUSTER_OPERATION else frozenset(read_file_ids())
        if file_ids:
            return file_ids
    return frozenset()


def find_buckets(
    newest_file_ids: Collection[str], *, has_hashing_metadata: bool, hudi_options: Mapping[str, str]
) -> Buckets:
    """Return which buckets a table has.

    `newest_file_ids` are those of `find_newest_file_ids`. A table without files has the buckets that its owner names.
    """
    is_named = names_buckets(hudi_options)
    if has_hashing_metadata or (is_named and _names_consistent_hashing(hudi_options)):
        return Buckets.CONSISTENT
    are_numbered = bool(newest_file_ids) and all(map(has_bucket_number, newest_file_ids))
    if not are_numbered and not is_named:
        return Buckets.NONE
    does_not_block = hudi_options.get(CONCURRENCY_MODE, "").strip().upper() == NON_BLOCKING
    is_fixed = does_not_block or any(map(_FIXED_NAME.match, newest_file_ids))
    return Buckets.FIXED_NAMES if is_fixed else Buckets.SIMPLE


def names_buckets(hudi_options: Mapping[str, str]) -> bool:
    """Return whether settings name a bucket index, of either kind."""
    return hudi_options.get(INDEX_TYPE, "").strip().upper() == "BUCKET"


def has_bucket_number(file_id: str) -> bool:
    """Return whether a file id begins with the number of a simple bucket."""
    return _BUCKET_NUMBER.match(file_id) is not None


def _names_consistent_hashing(hudi_options: Mapping[str, str]) -> bool:
    return hudi_options.get(BUCKET_ENGINE, "").strip().upper() == "CONSISTENT_HASHING"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """What a client of a table must know to write its files as the writers do."""

    buckets: Buckets
    has_meta_fields: bool
    """Whether each row has its key and partition; otherwise a client computes them (virtual keys)."""
    record_key_fields: tuple[str, ...]
    partition_fields: tuple[str, ...]
    key_generator: str
    """Class or type of the key generator; empty where the table does not say."""
    has_own_merger: bool = False
    """Whether rows are merged by a class of the owner's, which only the writers name."""
    loses_own_merger: bool = False
    """Whether Hudi 1.2 merges by the payload class in that one's place: the table has no merge mode (version 6)."""
    fills_unavailable: bool = False
    """Whether log files may leave out values that stay as they were, as Debezium does with long ones."""


def read_layout(properties: Mapping[str, str], buckets: Buckets) -> TableLayout:
    """Return the layout of a table from `hoodie.properties` and its buckets."""
    return TableLayout(
        buckets,
        has_meta_fields=properties.get(META_FIELDS, "true").strip().lower() != "false",
        record_key_fields=_split(properties.get(TABLE_RECORD_KEY, "")),
        partition_fields=_split(properties.get(TABLE_PARTITION_FIELDS, "")),
        key_generator=find_key_generator(properties),
        has_own_merger=_has_own_merger(properties),
        loses_own_merger=_loses_own_merger(properties),
        fills_unavailable=_fills_unavailable(properties),
    )


def find_key_generator(properties: Mapping[str, str]) -> str:
    """Return the class or type of a table's key generator; empty where it does not say one."""
    return properties.get(TABLE_KEY_GENERATOR) or properties.get("hoodie.table.keygenerator.type") or ""


def _fills_unavailable(properties: Mapping[str, str]) -> bool:
    return _has_logs(properties) and properties.get(TABLE_PARTIAL_UPDATES, "").strip().upper() == "FILL_UNAVAILABLE"


def _has_own_merger(properties: Mapping[str, str]) -> bool:
    is_custom = properties.get(RECORD_MERGE_MODE, "").strip().upper() == "CUSTOM"
    # By a payload's own rules Hudi merges with a class that it has itself.
    return is_custom and properties.get(MERGE_STRATEGY_ID, "") != PAYLOAD_STRATEGY_ID


def _loses_own_merger(properties: Mapping[str, str]) -> bool:
    strategy = properties.get(MERGE_STRATEGY_ID) or properties.get(OLD_MERGE_STRATEGY_ID, "")
    return _has_logs(properties) and not properties.get(RECORD_MERGE_MODE) and strategy not in _STRATEGIES_OF_HUDI


def _has_logs(properties: Mapping[str, str]) -> bool:
    return properties.get(TABLE_TYPE, "").strip().upper() == MERGE_ON_READ


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


# --- The settings that give a client the layout

KEY_GENERATOR = "hoodie.datasource.write.keygenerator.class"
_CLUSTERING = "org.apache.hudi.client.clustering"
STRATEGIES = "org.apache.hudi.client.transaction."
"""Hudi's package of rules of what makes two writes conflict."""
CONFLICTS_BY_FILE_GROUP = f"{STRATEGIES}SimpleConcurrentFileWritesConflictResolutionStrategy"
CONFLICTS_BY_BUCKET = f"{STRATEGIES}BucketIndexConcurrentFileWritesConflictResolutionStrategy"
"""What Hudi derives from a bucket index; it reads the bucket's number from file ids."""
CONSISTENT_CLUSTERING = {
    INDEX_TYPE: "BUCKET",
    BUCKET_ENGINE: "CONSISTENT_HASHING",
    STRATEGY_CLASS: f"{_CLUSTERING}.plan.strategy.SparkConsistentBucketClusteringPlanStrategy",
    CLUSTERING_EXECUTION_STRATEGY_CLASS: (
        f"{_CLUSTERING}.run.strategy.SparkConsistentBucketClusteringExecutionStrategy"
    ),
}
"""Settings with which a clustering changes the buckets of consistent hashing together with the file groups."""


def give_layout(
    service: Service, options: Mapping[str, str], layout: TableLayout, key_generator_class: str
) -> dict[str, str]:
    """Return the options of a client with the table's own layout in them.

    Without the record key no client with a bucket index opens (`HoodieIndexConfig.validateBucketIndexConfig`). A client
    that compares buckets' numbers fails with consistent hashing, whose file ids have none
    (`BucketIdentifier.bucketIdFromFileId`).
    `key_generator_class` is as Hudi reads it from the table.
    """
    found = {WRITE_RECORD_KEY: ",".join(layout.record_key_fields)} if layout.record_key_fields else {}
    if not layout.has_meta_fields:
        found |= {WRITE_PARTITION_FIELDS: ",".join(layout.partition_fields), KEY_GENERATOR: key_generator_class}
    given = {**found, **options}
    if layout.buckets is not Buckets.CONSISTENT:
        return given
    if given.get(CONFLICT_RESOLUTION_STRATEGY, "").strip() in {"", CONFLICTS_BY_BUCKET}:
        given[CONFLICT_RESOLUTION_STRATEGY] = CONFLICTS_BY_FILE_GROUP
    return given | (CONSISTENT_CLUSTERING if service is Service.CLUSTERING else {})


# --- What a layout forbids

HASH_FIELD = "hoodie.bucket.index.hash.field"
BUCKET_LIMITS = ("hoodie.bucket.index.min.num.buckets", "hoodie.bucket.index.max.num.buckets")


def asks_buckets(service: Service, mode: Mode) -> bool:
    """Return whether a service could do harm to a table with buckets."""
    return service in {Service.CLUSTERING, Service.TTL} and mode is not Mode.WITHDRAW


def find_layout_problem(service: Service, mode: Mode, layout: TableLayout, hudi_options: Mapping[str, str]) -> str:
    """Return why a service must not run on a table with this layout, and what to do; empty when it may."""
    if layout.loses_own_merger and service in {*REWRITES, Service.TTL} and mode is not Mode.WITHDRAW:
        return _LEFT_TO_WRITERS
    if layout.has_own_merger and service in REWRITES and mode is not Mode.WITHDRAW:
        if service is Service.CLUSTERING:
            return f"{_NOT_CLUSTERED}; {_WAY_OUT}"
        return "" if MERGER_CLASSES in hudi_options else _OWN_MERGER
    if layout.fills_unavailable and service is Service.CLUSTERING and mode is not Mode.WITHDRAW:
        return _UNAVAILABLE
    if not asks_buckets(service, mode):
        return ""
    if service is Service.TTL:
        by_row = mode is Mode.ERASE or TTL_COLUMN in hudi_options
        return _find_row_problem(layout) if by_row else _EXPIRED.get(layout.buckets, "")
    if layout.buckets in {Buckets.SIMPLE, Buckets.FIXED_NAMES}:
        return f"{_SIMPLE}; {_WAY_OUT}"
    if layout.buckets is Buckets.CONSISTENT:
        missing = _missing_options(mode, layout, hudi_options)
        return f"{_CONSISTENT} {', '.join(missing)}: set what the writers have in hudi_options" if missing else ""
    if not layout.has_meta_fields and not _COMPUTES_KEYS.match(layout.key_generator):
        return f"{_VIRTUAL_KEYS}; {_WAY_OUT}"
    return ""


def _find_row_problem(layout: TableLayout) -> str:
    """Return why rows of a table with this layout are not deleted one by one."""
    if not layout.has_meta_fields:
        return f"the table has virtual keys ({META_FIELDS}=false), and its files do not say which rows to delete"
    if layout.has_own_merger:
        return (
            f"its rows are merged by a class of its owner's ({RECORD_MERGE_MODE}=CUSTOM), which may keep a row that "
            "was deleted"
        )
    return _KEPT.get(layout.buckets, "")


def _missing_options(mode: Mode, layout: TableLayout, hudi_options: Mapping[str, str]) -> tuple[str, ...]:
    # Of one key field there is no other subset to hash.
    needed: tuple[str, ...] = () if len(layout.record_key_fields) == 1 else (HASH_FIELD,)
    if mode is not Mode.EXECUTE:
        needed += BUCKET_LIMITS
    return tuple(key for key in needed if not hudi_options.get(key, "").strip())


_COMPUTES_KEYS = re.compile(r"$|(?:org\.apache\.hudi\.keygen\.)?(?:simple|complex|non_?partition)", re.IGNORECASE)
"""Key generators with which Hudi 1.2 writes virtual keys, by class or type; empty where the fields say which one."""

_WAY_OUT = (
    "leave clustering to the table's writers, set clustering.enabled: false, and withdraw a plan that is pending (a "
    "run of the service clustering with mode withdraw)"
)
_SIMPLE = (
    "the table has a simple bucket index, and Hudi has no clustering for it: the new files would carry no bucket "
    "number, and every later upsert would fail"
)
_CONSISTENT = (
    "the table has a bucket index with consistent hashing, whose buckets a clustering splits and merges, and only its "
    "writers know"
)
_VIRTUAL_KEYS = (
    f"the table has virtual keys ({META_FIELDS}=false), and with its key generator Hudi does not know the partition of "
    "a clustered row"
)
_NOT_CLUSTERED = (
    f"its rows are merged by a class of its owner's ({RECORD_MERGE_MODE}=CUSTOM), which Hudi 1.2 does not give to a "
    "clustering (https://github.com/apache/hudi/issues/18980): each try would fail, and its plan would stop updates"
)
_UNAVAILABLE = (
    f"its writers leave out values that did not change ({TABLE_PARTIAL_UPDATES}=FILL_UNAVAILABLE), and a clustering by "
    "Hudi 1.2 writes their placeholder in the place of the values: set clustering.enabled: false, cluster by no "
    "writer, and withdraw a plan that is pending (a run of the service clustering with mode withdraw)"
)
_OWN_MERGER = (
    f"its rows are merged by a class of its owner's ({RECORD_MERGE_MODE}=CUSTOM), which only the writers name: set "
    f"their {MERGER_CLASSES} in hudi_options, and give the jobs the class's jar"
)
LOST_MERGER = (
    f"its rows are merged by a class of its owner's ({OLD_MERGE_STRATEGY_ID}), and Hudi 1.2 merges them by the table's "
    "payload class in its place"
)
_LEFT_TO_WRITERS = (
    f"{LOST_MERGER}: leave compaction, clustering and the deletion of rows to the table's writers, and withdraw a "
    "clustering that is pending (a run of the service with mode withdraw)"
)
_COME_BACK = (
    "rows that come back to a deleted partition would be written into file groups that the deletion replaced, and no "
    "reader would see them; leave ttl.retained_days unset"
)
_EXPIRED: Mapping[Buckets, str] = {
    Buckets.CONSISTENT: f"the table has a bucket index with consistent hashing: {_COME_BACK}",
    Buckets.FIXED_NAMES: (
        f"the table's writers do not block each other ({NON_BLOCKING}), so that a bucket's file group has a "
        f"fixed name: {_COME_BACK}"
    ),
}

_KEPT: Mapping[Buckets, str] = {
    Buckets.CONSISTENT: "the table has a bucket index with consistent hashing, where deletion of rows was not tried",
    Buckets.FIXED_NAMES: (
        f"the table's writers do not block each other ({NON_BLOCKING}): they pass over the table's lock, and a row "
        "that one of them writes meanwhile could be deleted"
    ),
}


def stays_below(path: str) -> bool:
    """Return whether a path that stands in a table's file leads to a file below the folder to which it is relative.

    Who may write the table's storage may write any path there, `..` among them, which Hadoop resolves.
    """
    segments = path.replace("\\", "/").split("/")
    return "" not in segments and "." not in segments and ".." not in segments and "\0" not in path
