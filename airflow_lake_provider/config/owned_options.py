"""Settings that not every user may set: Hudi's that services set themselves, those that execute code, and secrets.

A service sets some of Hudi's options itself, after those of `hudi_options`: a value there would be replaced silently,
and seven days of retention would become ten commits. So each of these is refused by name, with the provider's setting
for the same.
Hudi's older spellings count as well (`ConfigProperty.withAlternatives` in `HoodieCleanConfig` and others of 1.2.0).
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.shared.hudi_settings import (
    ARCHIVE_AUTOMATIC,
    AUTO_DELETE_INDEXES,
    BASE_PATH,
    CLEAN_AUTOMATIC,
    CLEAN_COMMITS_RETAINED,
    CLEAN_POLICY,
    CLEAN_TRIGGER_MAX_COMMITS,
    CLEAN_TRIGGER_STRATEGY,
    CLEAN_VERSIONS_RETAINED,
    CLUSTERING_ASYNC_ENABLED,
    CLUSTERING_ASYNC_MAX_COMMITS,
    CLUSTERING_ENABLE_EXPIRATIONS,
    CLUSTERING_INLINE,
    CLUSTERING_INLINE_MAX_COMMITS,
    CLUSTERING_SCHEDULE_INLINE,
    COMPACT_INLINE,
    COMPACT_INLINE_MAX_DELTA_COMMITS,
    COMPACT_SCHEDULE_INLINE,
    COMPACTION_TRIGGER,
    FAILED_WRITES_POLICY,
    FAILED_WRITES_POLICY_BEFORE,
    INDEX_CHECK_TIMEOUT,
    KEEP_MAX_COMMITS,
    KEEP_MIN_COMMITS,
    LOG_COMPACTION_ENABLE,
    LOG_COMPACTION_INLINE,
    PARTITION_TTL_INLINE,
    SYNC_BASE_PATH,
    SYNC_DATABASE_NAME,
    SYNC_METASTORE_URIS,
    SYNC_PARTITION_FIELDS,
    SYNC_TABLE_NAME,
    TABLE_NAME,
    TABLE_SERVICE_MANAGER_ENABLED,
    TABLE_SERVICES_ENABLED,
    TTL_DAYS,
    TTL_MAX_PARTITIONS,
    WRITE_AUTO_UPGRADE,
    WRITE_TABLE_VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

_TRIGGER = "{0} of the tables file decide whether a service is due; remove it"
_NEVER = "every service sets it itself; remove it"

_BY_ADVICE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "use clean.policy: commits, hours or versions": (CLEAN_POLICY, "hoodie.cleaner.policy"),
        "use clean.retained_commits": (CLEAN_COMMITS_RETAINED, "hoodie.cleaner.commits.retained"),
        "use clean.policy: hours and clean.retained_hours": (
            "hoodie.clean.hours.retained",
            "hoodie.cleaner.hours.retained",
        ),
        "use clean.policy: versions and clean.retained_versions": (
            CLEAN_VERSIONS_RETAINED,
            "hoodie.cleaner.fileversions.retained",
        ),
        "use archive.min_commits": (KEEP_MIN_COMMITS,),
        "use archive.max_commits": (KEEP_MAX_COMMITS,),
        "use ttl.retained_days": (TTL_DAYS,),
        "use ttl.max_partitions": (TTL_MAX_PARTITIONS,),
        "use sync.metastore": (SYNC_METASTORE_URIS,),
        "use sync.database": (SYNC_DATABASE_NAME,),
        "use sync.table": (SYNC_TABLE_NAME,),
        "use logcompaction.log_files": ("hoodie.log.compaction.blocks.threshold",),
        "use logcompaction.enabled": (LOG_COMPACTION_ENABLE,),
        "use indexing.check_timeout_s": (INDEX_CHECK_TIMEOUT,),
        "readers lose the writes that are archived after a savepoint (Hudi 1.2.0); remove it, here and in writers": (
            "hoodie.archive.beyond.savepoint",
        ),
        _TRIGGER.format("clean.commits and clean.max_age_s"): (
            CLEAN_TRIGGER_STRATEGY,
            CLEAN_TRIGGER_MAX_COMMITS,
            "hoodie.clean.max.commits",
        ),
        _TRIGGER.format("compaction.delta_commits and its other rules"): (
            COMPACTION_TRIGGER,
            COMPACT_INLINE_MAX_DELTA_COMMITS,
        ),
        _TRIGGER.format("clustering.commits and its other rules"): (
            CLUSTERING_INLINE_MAX_COMMITS,
            CLUSTERING_ASYNC_MAX_COMMITS,
        ),
        "a service works on the table that it was started for; remove it": (
            BASE_PATH,
            TABLE_NAME,
            SYNC_BASE_PATH,
            SYNC_PARTITION_FIELDS,
        ),
        _NEVER: (
            AUTO_DELETE_INDEXES,
            TABLE_SERVICE_MANAGER_ENABLED,
            TABLE_SERVICES_ENABLED,
            FAILED_WRITES_POLICY,
            FAILED_WRITES_POLICY_BEFORE,
            CLUSTERING_ENABLE_EXPIRATIONS,
            CLEAN_AUTOMATIC,
            ARCHIVE_AUTOMATIC,
            COMPACT_INLINE,
            COMPACT_SCHEDULE_INLINE,
            CLUSTERING_INLINE,
            "hoodie.datasource.clustering.inline.enable",
            CLUSTERING_SCHEDULE_INLINE,
            CLUSTERING_ASYNC_ENABLED,
            "hoodie.datasource.clustering.async.enable",
            LOG_COMPACTION_INLINE,
            PARTITION_TTL_INLINE,
            WRITE_AUTO_UPGRADE,
            WRITE_TABLE_VERSION,
        ),
    }
)

OWNED_OPTIONS: Mapping[str, str] = MappingProxyType(
    {key: advice for advice, keys in _BY_ADVICE.items() for key in keys}
)
"""Each such setting of Hudi, with what to do instead."""


def find_owned_option(hudi_options: Mapping[str, str]) -> str | None:
    """Say in one sentence which of the options a service owns, and what to use instead; None when none is."""
    for key in hudi_options:
        if key in OWNED_OPTIONS:
            return f"{key} is set by the provider's services: {OWNED_OPTIONS[key]}"
        if key.startswith("lake."):
            return f"{key} is set by the provider's services: the tables file sets it by another name; {_NEVER}"
    return None


# --- Settings that execute code: a class, a library, a script or a program that the setting names runs in the job, or
# on the worker. The owner of the tables file may set them. A user who may start a run may not: Airflow lets such a user
# choose the run's id and its conf.

_CODE_KEYS = re.compile(
    r"java\.?options|java\.opts|class\.?paths?|library\.?paths?|\bjars?\b|\.packages|repositories|ivy|py\.?files|python"
    r"|\.files$|archives?$|\.dist\.|image|pod\.?template|env(vars)?\.|\.?env$|plugins?|listeners?|extensions|catalog"
    r"|registrator|classes\.?to\.?register|script|shell|command|\bcmd\b|filters|^spark\.hadoop\.|metrics\.conf|\.r\."
    r"|callback|jdbc|^spark\.master$|^spark\.lake\.jobs$|proxy\.?user|ssl\.(engine|providers)|plugin\.library|discovery",
    re.IGNORECASE,
)
"""Where the value is a place of code, or may be one of many kinds of settings, as below `spark.hadoop.`."""

_CLASS_KEYS = re.compile(
    r"class|provider|strategy|merger|payload|impl$|factory|extractor|generator|comparator|codec|serializer|manager"
    r"|translator|resolver|policy|handler|transformer",
    re.IGNORECASE,
)
_CLASS = re.compile(r"\b(?:[a-z_]\w*\.)+[A-Z_$]\w*")
_HUDI_CLASS = re.compile(r"org\.apache\.hudi\.[\w.$]+")
# A class without a package would have to be in a jar that the job does not load.
_PLAIN = re.compile(r"[\w-]*|-?[\d.]+[a-z]*", re.ASCII)


def executes_code(key: str, value: str) -> bool:
    """Whether a setting of Spark, Flink, Hudi or a sink names code that is not Hudi's own.

    It errs on the safe side: where neither key nor value are known to be harmless, the answer is yes.
    """
    if _CODE_KEYS.search(key):
        return True
    parts = [part.strip() for part in value.split(",")]
    if _CLASS_KEYS.search(key):
        return not all(_HUDI_CLASS.fullmatch(part) or _PLAIN.fullmatch(part) for part in parts)
    return any(_CLASS.search(part) and not _HUDI_CLASS.fullmatch(part) for part in parts)


def find_code_option(
    given: Mapping[str, str], in_tables_file: Mapping[str, str], allowed: Collection[str]
) -> str | None:
    """Return the first of a run's settings that executes code and comes from the run alone; None when there is none.

    A setting with the tables file's value is that file's. `allowed` are names, with `*` as in file names.
    """
    for key, value in given.items():
        if in_tables_file.get(key) == value or any(fnmatchcase(key, pattern) for pattern in allowed):
            continue
        if executes_code(key, value) or value.startswith(REFERENCE):
            return key
    return None


# --- Secrets: a setting refers to one, so that no file, conf, command line or page holds it

REFERENCE = "secret://"
"""Begins a value that a worker replaces: `secret://connection/<id>/password`, `.../login`, `.../extra/<key>`, or
`secret://variable/<name>`. Connections and Variables may come from any secrets backend."""

SECRET_KEY = re.compile(r"(?i)secret|passw(or)?d|passphrase|token|access[._-]?key|private[._-]?key|credential|jaas")
_HARMLESS_KEY = re.compile(
    r"(?i)(providers?|paths?|files?|location|class|type|enabled|regex|url|uri|endpoint|name|alias|interval|seconds|_m?s"
    r"|expir\w*|renewal\w*|duration|retries)$"
)
_NAMES_A_SECRET = re.compile(r"spark\.kubernetes\.(driver|executor)\.(secretKeyRef|secrets)\.\S+")
"""Their values are the name of a Secret in the cluster with a key of it, or the path that it is mounted at."""
_HARMLESS_VALUE = re.compile(r"|\*+|true|false|\d+", re.IGNORECASE)
_LOGIN_IN_URL = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


def is_open_secret(key: str, value: str) -> bool:
    """Whether a setting seems to hold a secret itself, by its name, or by a login in a URL."""
    if value.startswith(REFERENCE):
        return False
    if _LOGIN_IN_URL.search(value):
        return True
    if _NAMES_A_SECRET.fullmatch(key):
        return False
    is_named = SECRET_KEY.search(key) is not None and _HARMLESS_KEY.search(key) is None
    return is_named and _HARMLESS_VALUE.fullmatch(value) is None


def explain_secret(key: str) -> str:
    """Say what to write instead of a secret."""
    return (
        f"{key} holds a secret, and each run would show it: put it into an Airflow connection or Variable, and write "
        f"{REFERENCE}connection/<id>/password, {REFERENCE}connection/<id>/extra/<key> or {REFERENCE}variable/<name>"
    )


# --- Kinds of indexes that the provider does not build: Hudi 1.2 has them in part, or users expect them of it
#
# Source: Hudi 1.2.0 `MetadataPartitionType` (no vector index), `HoodieMetadataConfig` (record index of each partition),
# `HoodieBackedTableMetadataWriter.maybeInitializeNewFileGroupsForPartitionedRLI`.

_BY_PARTITION = (
    "the provider builds the global record index only: write record_index where a key is in one partition only, or set "
    "hoodie.metadata.record.level.index.enable=true in all writers, which then build one of each partition themselves"
)
_BLOOM_FILTERS_OF_EXPRESSIONS = (
    "the provider builds an expression index of statistics only: write bloom_filters for those of the record keys, or "
    "have Spark SQL build it while no writer runs (create index ... using bloom_filters(COLUMN) options(expr='...'))"
)
_UNBUILT_INDEXES: Mapping[str, str] = MappingProxyType(
    {
        r"vector_index(:.*)?": "Hudi 1.2 has no vector index: leave it out, and search with its table function "
        "hudi_vector_search, which reads all rows",
        r"(partitioned_record_index|record_level_index)(:.*)?|record_index:\s*partitioned": _BY_PARTITION,
        r"expression_index:.*[:,]\s*[a-z_.]*type\s*=\s*bloom_filters?\b.*": _BLOOM_FILTERS_OF_EXPRESSIONS,
    }
)


def explain_unbuilt_index(text: str) -> str:
    """Return what to do instead of an index that the provider does not build; empty for all others."""
    for pattern, advice in _UNBUILT_INDEXES.items():
        if re.fullmatch(pattern, text.strip().lower(), re.DOTALL):
            return advice
    return ""
