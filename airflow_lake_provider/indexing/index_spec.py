"""How users spell an index, what Hudi calls it, and how requested indexes reach the Spark job.

Pure. Hudi's names are those of `MetadataPartitionType` and of the folders of the metadata
table: a secondary index of the column `city` lies in `secondary_index_city`, an expression index `by_day` in
`expr_index_by_day`.

The spelling that users write, in the tables file, in a form, or on the command line:

    files | column_stats | partition_stats | bloom_filters | record_index
    column_stats:amount,ts                                only these columns
    secondary_index:city                                  one column
    expression_index:by_day:from_unixtime(ts)             name, function of one column
    expression_index:by_day:from_unixtime(ts):format=yyyy-MM-dd
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.config.owned_options import explain_unbuilt_index
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.job_contract import (
    EXPRESSION_INDEX_PREFIX,
    INDEX_WANTED,
    SECONDARY_INDEX_PREFIX,
    find_lock_problem,
)
from airflow_lake_provider.shared.hudi_settings import AUTO_DELETE_INDEXES, STREAMING_WRITES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.hudi.properties import TableProperties
    from airflow_lake_provider.hudi.timeline import Timeline

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_META_COLUMN = "_hoodie_"
_EXPRESSION = re.compile(r"(?P<function>[a-z_0-9]+)\((?P<column>[A-Za-z_][A-Za-z0-9_.]*)\)")


class IndexKind(StrEnum):
    """Kinds of indexes, in the spelling that people write."""

    FILES = "files"
    COLUMN_STATS = "column_stats"
    PARTITION_STATS = "partition_stats"
    BLOOM_FILTERS = "bloom_filters"
    RECORD_INDEX = "record_index"
    SECONDARY_INDEX = "secondary_index"
    EXPRESSION_INDEX = "expression_index"


class CheckLevel(StrEnum):
    """How a build is verified: by timeline and metadata table log always, by the data files' contents on request."""

    CHEAP = "cheap"
    FULL = "full"
    SAMPLE = "sample"
    """Rows are searched for by an index that is complete already; one that misses rows is unlisted and rebuilt."""


NEEDS: Mapping[IndexKind, IndexKind] = MappingProxyType(
    {
        IndexKind.PARTITION_STATS: IndexKind.COLUMN_STATS,
        IndexKind.SECONDARY_INDEX: IndexKind.RECORD_INDEX,
    }
)
"""An index that must be complete before another can be built."""


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """One index that a table must have.

    `partition` is its folder in the metadata table, `hudi_type` the name of Hudi's `MetadataPartitionType`, `settings`
    what Hudi needs besides the type.
    """

    kind: IndexKind
    partition: str
    settings: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def hudi_type(self) -> str:
        """Name of Hudi's MetadataPartitionType."""
        return self.kind.name


def parse_index(text: str) -> IndexSpec:
    """Parse the spelling of one index. Raises ConfigError that names what is allowed, or what to do instead."""
    advice = explain_unbuilt_index(text)
    if advice:
        raise ConfigError(f"{text!r}: {advice}")
    word, _, rest = text.strip().partition(":")
    try:
        kind = IndexKind(word.strip().lower())
    except ValueError as error:
        allowed = ", ".join(IndexKind)
        raise ConfigError(f"{text!r} is no index; allowed: {allowed} (see docs/indexing.md)") from error
    rest = rest.strip()
    if kind is IndexKind.SECONDARY_INDEX:
        return _secondary(text, rest)
    if kind is IndexKind.EXPRESSION_INDEX:
        return _expression(text, rest)
    if kind is IndexKind.COLUMN_STATS and rest:
        columns = [column.strip() for column in rest.split(",")]
        if not all(_COLUMN.fullmatch(column) for column in columns):
            raise ConfigError(f"{text!r}: write column_stats:amount,ts")
        settings = {"hoodie.metadata.index.column.stats.column.list": ",".join(columns)}
        return IndexSpec(kind, kind.value, MappingProxyType(settings))
    if rest:
        raise ConfigError(f"{text!r}: {kind} takes nothing after it")
    return IndexSpec(kind, kind.value)


def parse_indexes(texts: Iterable[str]) -> tuple[IndexSpec, ...]:
    """Parse several, put them into the order in which Hudi can build them, drop repetitions.

    Raises ConfigError, also for two that are one index of Hudi's with different settings.
    """
    specs: dict[str, IndexSpec] = {}
    spelled: dict[str, str] = {}
    for text in texts:
        spec = parse_index(text)
        if specs.setdefault(spec.partition, spec) != spec:
            both = f"{spelled[spec.partition]!r} and {text!r}"
            raise ConfigError(f"{both} are one index of Hudi's, {spec.partition}: write it once, with all its columns")
        spelled.setdefault(spec.partition, text)
    order = list(IndexKind)
    return tuple(sorted(specs.values(), key=lambda spec: (order.index(spec.kind), spec.partition)))


def split_indexes(indexes: Sequence[str] | str) -> list[str]:
    """Return the spellings of a list, or of a text: separated by semicolons, or a JSON list as templates render it.

    Raises ValueError for a text that begins as a list and is none.
    """
    if not isinstance(indexes, str):
        return list(indexes)
    if indexes.lstrip().startswith("["):
        return [str(name) for name in json.loads(indexes)]
    return [name for name in indexes.split(";") if name.strip()]


def requested_options(specs: Iterable[IndexSpec]) -> dict[str, str]:
    """Return the option of a service request by which the Spark job learns what to schedule."""
    requests = [
        {"partition": spec.partition, "hudi_type": spec.hudi_type, "settings": dict(spec.settings)} for spec in specs
    ]
    return {INDEX_WANTED: json.dumps(requests, sort_keys=True)}


def _secondary(text: str, column: str) -> IndexSpec:
    if not _COLUMN.fullmatch(column):
        raise ConfigError(f"{text!r}: write secondary_index:COLUMN, one column")
    settings = {"hoodie.metadata.index.secondary.column": column}
    return IndexSpec(IndexKind.SECONDARY_INDEX, f"{SECONDARY_INDEX_PREFIX}{column}", MappingProxyType(settings))


def _expression(text: str, rest: str) -> IndexSpec:
    name, _, rest = rest.partition(":")
    call, _, extra = rest.partition(":")
    found = _EXPRESSION.fullmatch(call.strip())
    if found is None or not _NAME.fullmatch(name):
        raise ConfigError(f"{text!r}: write expression_index:NAME:FUNCTION(COLUMN), then :key=value,... when needed")
    options = ",".join([f"expr={found['function']}", *(part.strip() for part in extra.split(",") if part.strip())])
    settings = {
        "hoodie.metadata.index.expression.column": found["column"],
        "hoodie.metadata.index.expression.options": options,
        "hoodie.index.name": name,
        "hoodie.expression.index.type": "column_stats",
    }
    return IndexSpec(IndexKind.EXPRESSION_INDEX, f"{EXPRESSION_INDEX_PREFIX}{name}", MappingProxyType(settings))


# --- Which indexes a table should have by policy and has not. Pure


def find_missing(wanted: Sequence[IndexSpec], properties: TableProperties) -> tuple[IndexSpec, ...]:
    """Return the wanted indexes that the properties do not list as complete, in the order of `wanted`.

    Partition statistics do not exist for tables without partitions.
    """
    have = frozenset(properties.metadata_partitions)
    impossible = frozenset() if properties.partition_fields else frozenset({"partition_stats"})
    return tuple(spec for spec in wanted if spec.partition not in have | impossible)


def find_buildable(
    wanted: Sequence[IndexSpec], properties: TableProperties, timeline: Timeline
) -> tuple[IndexSpec, ...]:
    """Return the missing indexes that Hudi would plan now: from table version 8 on, and not before a first write."""
    if properties.layout is Layout.V1 or timeline.latest_write_without_holes() is None:
        return ()
    return find_missing(wanted, properties)


def find_unmet_need(wanted: Sequence[IndexSpec], properties: TableProperties) -> str | None:
    """Say which index is wanted without the one it is built on; None when none is."""
    kinds = {spec.kind for spec in wanted}
    for spec in wanted:
        need = NEEDS.get(spec.kind)
        if need is not None and need not in kinds and need.value not in properties.metadata_partitions:
            return f"{spec.partition} needs {need}, which the table lacks; request both"
    return None


# --- Whether a complete index is the one that is wanted: a table keeps the definition of what was built. Pure


@dataclass(frozen=True, slots=True)
class IndexDefinition:
    """What Hudi keeps of an index (`HoodieIndexDefinition`); `options` are those of an expression."""

    kind: str
    function: str
    columns: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def find_changed(
    wanted: Sequence[IndexSpec], properties: TableProperties, definitions: Mapping[str, IndexDefinition]
) -> Mapping[str, str]:
    """Return by partition how complete indexes differ from what is wanted, in a sentence with what to do.

    An index without a definition, and statistics for which no columns are named, differ from nothing.
    """
    found = {}
    for spec in wanted:
        definition = definitions.get(spec.partition)
        if definition is None or spec.partition not in properties.metadata_partitions:
            continue
        has = _describe_definition(spec, definition)
        wants = _describe_wanted(spec)
        if wants and has != wants:
            found[spec.partition] = (
                f"it is of {has}, and indexing.indexes requests {wants}: rebuild it with lake_reindex and drop_first"
            )
    return MappingProxyType(found)


def spell_index(partition: str, definition: IndexDefinition | None) -> str | None:
    """Return how `parse_index` reads an index that a table has; None for one that was made by other rules."""
    columns = [] if definition is None else [name for name in definition.columns if not name.startswith(_META_COLUMN)]
    if partition.startswith(SECONDARY_INDEX_PREFIX):
        text = f"{IndexKind.SECONDARY_INDEX}:{','.join(columns)}"
    elif partition.startswith(EXPRESSION_INDEX_PREFIX) and definition is not None:
        call = f"{definition.function}({','.join(columns)})"
        options = ",".join(f"{key}={value}" for key, value in sorted(definition.options.items()) if key != "expr")
        name = partition.removeprefix(EXPRESSION_INDEX_PREFIX)
        text = ":".join(part for part in (IndexKind.EXPRESSION_INDEX, name, call, options) if part)
    elif partition == IndexKind.COLUMN_STATS.value and columns:
        text = f"{partition}:{','.join(columns)}"
    else:
        text = partition
    try:
        return text if parse_index(text).partition == partition else None
    except ConfigError:
        return None


def _describe_definition(spec: IndexSpec, definition: IndexDefinition) -> str:
    columns = sorted(column for column in definition.columns if not column.startswith(_META_COLUMN))
    if spec.kind is not IndexKind.EXPRESSION_INDEX:
        return ", ".join(columns)
    options = [f"{key}={value}" for key, value in sorted(definition.options.items()) if key != "expr"]
    return _expression_text(definition.function, ", ".join(columns), options, definition.kind)


def _describe_wanted(spec: IndexSpec) -> str:
    """Return it as `_describe_definition` does; empty for any."""
    if spec.kind is IndexKind.SECONDARY_INDEX:
        return spec.settings["hoodie.metadata.index.secondary.column"]
    if spec.kind is not IndexKind.EXPRESSION_INDEX:
        columns = spec.settings.get("hoodie.metadata.index.column.stats.column.list", "")
        return ", ".join(sorted(columns.split(",")))
    expr, *options = spec.settings["hoodie.metadata.index.expression.options"].split(",")
    column = spec.settings["hoodie.metadata.index.expression.column"]
    kind = spec.settings["hoodie.expression.index.type"]
    return _expression_text(expr.removeprefix("expr="), column, sorted(options), kind)


def _expression_text(function: str, column: str, options: Iterable[str], kind: str) -> str:
    return " ".join([f"{function}({column})", *options, "" if kind == "column_stats" else f"by {kind}"]).strip()


# --- What the settings that the tables file declares for a table mean for its index builds. Pure
#
# Settings of writers are written down nowhere in a table. What the tables file declares (`hudi_options`) is advice
# that is checked here; what writers really do, the build finds out under the table's lock.

EMBEDDED_SERVER = "hoodie.embed.timeline.server"
NEED_EMBEDDED_SERVER = frozenset({IndexKind.PARTITION_STATS, IndexKind.EXPRESSION_INDEX})


def find_setting_problems(specs: Sequence[IndexSpec], declared: Mapping[str, str]) -> tuple[str, ...]:
    """Return in sentences what is wrong with the declared settings for these indexes; the lock rule first."""
    problems = []
    lock = find_lock_problem(declared)
    if lock is not None:
        problems.append(lock)
    if _is(declared, AUTO_DELETE_INDEXES, "true"):
        problems.append(f"{AUTO_DELETE_INDEXES}=true: writers would drop indexes that they do not name; set false")
    if _is(declared, STREAMING_WRITES, "true"):
        problems.append(f"{STREAMING_WRITES}=true: builds wait for a moment without writers; set it to false")
    needing = [spec.partition for spec in specs if spec.kind in NEED_EMBEDDED_SERVER]
    if needing and _is(declared, EMBEDDED_SERVER, "false"):
        problems.append(
            f"{EMBEDDED_SERVER}=false: Hudi 1.2's writers fail on a table with {', '.join(needing)} then; set true"
        )
    return tuple(problems)


def _is(declared: Mapping[str, str], key: str, value: str) -> bool:
    return declared.get(key, "").strip().lower() == value
