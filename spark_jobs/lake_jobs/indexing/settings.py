"""The settings that an index is scheduled and built with, and what a request asks for. Pure."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import (
    EXPRESSION_INDEX_PREFIX,
    INDEX_CHECK,
    INDEX_DROP,
    INDEX_DROP_FIRST,
    INDEX_NO_WRITER,
    INDEX_OPTIONS,
    INDEX_WAIT_S,
    INDEX_WANTED,
    SECONDARY_INDEX_PREFIX,
)
from airflow_lake_provider.shared.hudi_settings import (
    COLUMN_STATS_ENABLE,
    INDEX_CHECK_TIMEOUT,
    METADATA_ENABLE,
    PARTITION_STATS_ENABLE,
)
from lake_jobs.indexing.rules import Upkeep

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_WAIT_S = 300.0
DEFAULT_CHECK_TIMEOUT_S = 900.0
_FILE_GROUPS = "hoodie.metadata.global.record.level.index.{}.filegroup.count"
DEFAULT_FILE_GROUPS = 10
"""Hudi's own minimum for a record index."""

BUILDER: Mapping[str, str] = MappingProxyType(
    {
        # Without it Hudi 1.2 builds the index in the constructor of its metadata writer, without an entry in the
        # table's properties: no writer then knows of the build, and what they commit meanwhile is missing in the index.
        "hoodie.metadata.index.async": "true",
    }
)

_RECORD_INDEX = {"hoodie.metadata.global.record.level.index.enable": "true"}
_COLUMN_STATS = {COLUMN_STATS_ENABLE: "true"}
_ENABLED_BY: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "files": {METADATA_ENABLE: "true"},
        "column_stats": _COLUMN_STATS,
        "partition_stats": {**_COLUMN_STATS, PARTITION_STATS_ENABLE: "true"},
        "bloom_filters": {"hoodie.metadata.index.bloom.filter.enable": "true"},
        "record_index": _RECORD_INDEX,
        SECONDARY_INDEX_PREFIX: {**_RECORD_INDEX, "hoodie.metadata.index.secondary.enable": "true"},
        EXPRESSION_INDEX_PREFIX: {"hoodie.metadata.index.expression.enable": "true"},
    }
)
_NAMED = (SECONDARY_INDEX_PREFIX, EXPRESSION_INDEX_PREFIX)


@dataclass(frozen=True, slots=True)
class WantedIndex:
    """One index to build: its folder in the metadata table and Hudi's type of it."""

    partition: str
    hudi_type: str
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """What a request says beyond Hudi's settings.

    `wait_s` bounds the wait for a moment without writers in the way. `check_timeout_s` bounds the wait for writers that
    may not know of the index when it is built, as Hudi's setting of that meaning does. Two fields come from the run,
    not from the request. `is_repeated`: an earlier build failed its check, so the lock is held until the index is
    built, whatever its kind. `is_replaced`: writers overtook the earlier plan, so this one is built without a wait for
    older writes, during which they might overtake it again.
    """

    wanted: tuple[WantedIndex, ...] = ()
    check: str = "cheap"
    wait_s: float = DEFAULT_WAIT_S
    check_timeout_s: float = DEFAULT_CHECK_TIMEOUT_S
    drop_first: bool = False
    drop: bool = False
    no_writer: bool = False
    is_repeated: bool = False
    is_replaced: bool = False


class IndexRequestError(ValueError):
    """The options of a request cannot be understood."""


def index_options(options: Mapping[str, str]) -> IndexOptions:
    """Read the options of a request. Raises IndexRequestError."""
    try:
        wanted = tuple(
            WantedIndex(str(requested["partition"]), str(requested["hudi_type"]), dict(requested.get("settings") or {}))
            for requested in json.loads(options.get(INDEX_WANTED, "[]"))
        )
        return IndexOptions(
            wanted=wanted,
            check=options.get(INDEX_CHECK, "cheap"),
            wait_s=float(options.get(INDEX_WAIT_S, DEFAULT_WAIT_S)),
            check_timeout_s=float(options.get(INDEX_CHECK_TIMEOUT, DEFAULT_CHECK_TIMEOUT_S)),
            drop=options.get(INDEX_DROP, "") == "true",
            drop_first=options.get(INDEX_DROP_FIRST, "") == "true",
            no_writer=options.get(INDEX_NO_WRITER, "") == "true",
        )
    except (ValueError, TypeError, KeyError) as error:
        raise IndexRequestError(f"the options {INDEX_OPTIONS}* cannot be understood: {error!r}") from error


def drop_mark(partition: str, job_id: str) -> str:
    """Return the name by which a run records that it dropped an index: a retry must not drop what was built since.

    A job's id is `<run>/<try>`.
    """
    run_id = job_id.rpartition("/")[0] or job_id
    return f"dropped-{partition}-{hashlib.sha256(run_id.encode()).hexdigest()[:16]}"


def hudi_settings_of(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that are Hudi's."""
    return {key: value for key, value in options.items() if not key.startswith(INDEX_OPTIONS)}


def build_settings(partition: str, wanted: WantedIndex | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return what a client needs to schedule or build one index, besides what every service needs.

    A record index, and a secondary one, get a fixed number of file groups. Hudi would count all keys first, and a
    writer that commits before the file groups are there fails.
    """
    prefix = next((name for name in _NAMED if partition.startswith(name)), partition)
    groups = given.get(_FILE_GROUPS.format("min"), str(DEFAULT_FILE_GROUPS))
    return {
        **BUILDER,
        **_ENABLED_BY.get(prefix, {}),
        **(wanted.settings if wanted is not None else {}),
        _FILE_GROUPS.format("min"): groups,
        _FILE_GROUPS.format("max"): groups,
    }


def hudi_type_of(partition: str) -> str:
    """Return Hudi's type of an index by the name of its folder (`MetadataPartitionType`)."""
    return {SECONDARY_INDEX_PREFIX: "SECONDARY_INDEX", EXPRESSION_INDEX_PREFIX: "EXPRESSION_INDEX"}.get(
        next((prefix for prefix in _NAMED if partition.startswith(prefix)), ""), partition.upper()
    )


def reads_up_to_its_plan(partition: str) -> bool:
    """Whether a build leaves out the files of writes that were requested after its plan, completed or not.

    Hudi 1.2 lists the files for these two up to the plan's own time (`DirectoryInfo`), and its catch-up passes over
    writes that the metadata table knows already.
    """
    return partition in {"column_stats", "bloom_filters"}


def upkeep_of(partition: str) -> Upkeep:
    """Return what brings into an index what is committed while it is being built.

    Writers do, by the table's properties, for all but secondary and expression indexes: of those, Hudi 1.2 updates only
    complete ones (`updateSecondaryIndexIfPresent`, `updateExpressionIndexIfPresent`). `files` has no place to write to.
    """
    if partition.startswith(_NAMED):
        return Upkeep.BY_BUILDER
    return Upkeep.NONE if partition == "files" else Upkeep.BY_WRITERS
