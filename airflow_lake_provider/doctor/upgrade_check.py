"""What forbids another version for a table, and what it does besides. Pure; nothing is changed.

Source: Hudi 1.2 `UpgradeDowngrade` and its handlers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.report_lines import (
    LineKind,
    ReportLine,
    describe_line,
    is_refused,
    listed_names,
    refuse,
    state_refusals,
)
from airflow_lake_provider.hudi.instant import Layout
from airflow_lake_provider.obstacles import explain_pending_restore
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.shared.hudi_settings import COMPLEX_KEYGEN_VALIDATION, MERGE_ON_READ, RECORD_MERGE_MODE
from airflow_lake_provider.table_layout import find_key_generator

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from airflow_lake_provider.doctor.evidence import Evidence

READABLE_FROM: Mapping[int, str] = MappingProxyType({6: "0.14.0", 8: "1.0.0", 9: "1.1.0"})
"""The first Hudi release that reads and writes tables of a version."""
OWN_TIMELINE_FROM = 8
MERGE_MODES_FROM = 9
_KEEPS_TIMES = ("/", "file:", "hdfs:")
"""Stores on which a file can be given a modification time."""


class UpgradeState(StrEnum):
    """Whether the version of a table can be changed."""

    READY = "ready"
    REFUSED = "refused"
    DONE = "has it"
    GOES_ON = "goes on"
    """An earlier run was interrupted; a further one goes on."""


@dataclass(frozen=True, slots=True)
class UpgradePlan:
    """What a check found for one table."""

    base_path: str
    name: str
    version: int
    """What the table has; 0 where it could not be read."""
    target: int
    state: UpgradeState
    lines: tuple[ReportLine, ...] = ()

    @property
    def report(self) -> str:
        """The plan in lines of text."""
        head = f"{self.state:<8} {self.version or '?'} -> {self.target}  {self.name}  {self.base_path}"
        return "\n".join([head, *(f"  {text}" for line in self.lines for text in describe_line(line).splitlines())])


def check_upgrade(
    evidence: Evidence, target: int, options: Mapping[str, str], streams: Iterable[str], holds: Iterable[str]
) -> tuple[UpgradeState, tuple[ReportLine, ...]]:
    """Return whether a table can have another version, what forbids it, and what it does besides.

    `options` are the jobs' Hudi settings of the table, `streams` its sinks, `holds` those of readers, in words.
    """
    version = evidence.properties.version
    if version == target:
        return UpgradeState.DONE, ()
    refused = (
        *_pending_refusals(evidence),
        *state_refusals(evidence, (), holds),
        *_damage_refusals(evidence),
        *_version_refusals(evidence, target, options),
    )
    lines = (*refused, *_effects(evidence, target, streams))
    return (UpgradeState.REFUSED if is_refused(lines) else UpgradeState.READY), lines


_SERVICE_OF: Mapping[Action, str] = MappingProxyType(
    {
        Action.COMPACTION: "compaction",
        Action.LOGCOMPACTION: "logcompaction",
        Action.CLUSTERING: "clustering",
        Action.CLEAN: "clean",
        Action.INDEXING: "indexing",
    }
)


def _pending_refusals(evidence: Evidence) -> Iterator[ReportLine]:
    restoring = explain_pending_restore(i.requested_time for i in evidence.timeline.pending(Action.RESTORE))
    if restoring:
        yield refuse("restore", restoring, "finish that restore")
    for instant in evidence.timeline.pending():
        is_plan = instant.requested_time in evidence.clustering_plans
        service = "clustering" if is_plan else _SERVICE_OF.get(instant.action)
        if service in {"compaction", "logcompaction"}:
            why = "an upgrade over it hides the rows that were written after the plan"
        elif service == "indexing":
            why = "a downgrade lists its index as complete"
        else:
            why = "Hudi rolls it back before it changes the version"
        if instant.action is Action.RESTORE:
            continue
        if service:
            remedy = f"let the service finish, or run lake_table_service with service {service} and mode execute"
        else:
            remedy = "wait for its writer; where that is dead, run the service rollback"
        yield refuse(instant.requested_time, f"{service or instant.action} is pending: {why}", remedy)


def _damage_refusals(evidence: Evidence) -> Iterator[ReportLine]:
    if evidence.archived_behind is not None:
        what = evidence.archived_behind.describe()
        yield refuse(evidence.archived_behind.head.requested_time, what, "see airflow lake doctor")
    if evidence.why_blocked:
        yield refuse("rows_differ", evidence.why_blocked, "find the cause, then lift the block by airflow lake doctor")
    for kind, seen in sorted(evidence.damage.items()):
        yield refuse(kind.value, seen.what, "see airflow lake doctor")


def _version_refusals(evidence: Evidence, target: int, options: Mapping[str, str]) -> Iterator[ReportLine]:
    properties = evidence.properties
    raw = properties.raw
    steps_over_9 = MERGE_MODES_FROM in {properties.version, target}
    generator = find_key_generator(raw).rpartition(".")[2]
    is_complex = generator.startswith("Complex") or generator.upper() in {"COMPLEX", "COMPLEX_AVRO"}
    allows = options.get(COMPLEX_KEYGEN_VALIDATION, "true").strip().lower() == "false"
    if steps_over_9 and is_complex and len(properties.record_key_fields) == 1 and not allows:
        yield refuse(
            properties.record_key_fields[0],
            "a complex key generator with one key field: releases of Hudi spell its keys in two ways, and Hudi stops "
            "in the middle",
            f"compare _hoodie_record_key of old and new rows; where all are alike, set {COMPLEX_KEYGEN_VALIDATION}="
            "false in hudi_options of the tables file",
        )
    payload = _payload_of(raw)
    if (
        target >= MERGE_MODES_FROM
        and payload.endswith(".PostgresDebeziumAvroPayload")
        and properties.table_type == MERGE_ON_READ
    ):
        yield refuse(
            payload.rpartition(".")[2],
            "from version 9 on Hudi's clustering writes __debezium_unavailable_value in the place of values",
            "choose version 8",
        )
    if target < OWN_TIMELINE_FROM:
        yield from _downgrade_refusals(evidence)


def _payload_of(raw: Mapping[str, str]) -> str:
    """Return the payload class of a table; from version 9 on another property has it."""
    return next((text for key, text in raw.items() if key.endswith("payload.class") and text), "")


def _downgrade_refusals(evidence: Evidence) -> Iterator[ReportLine]:
    raw = evidence.properties.raw
    if raw.get(RECORD_MERGE_MODE) == "CUSTOM" and not _payload_of(raw):
        yield refuse(
            RECORD_MERGE_MODE,
            "a merger of the owner's: version 6 knows only payload classes, and Hudi stops in the middle",
            "stay at version 8",
        )
    if not evidence.base_path.startswith(_KEEPS_TIMES):
        yield refuse(
            evidence.base_path.partition(":")[0],
            "version 6 keeps completion times as modification times of files, which this store cannot set: rows of old "
            "log files would come back",
            "stay at version 8",
        )


def _effects(evidence: Evidence, target: int, streams: Iterable[str]) -> Iterator[ReportLine]:
    properties = evidence.properties
    if target < OWN_TIMELINE_FROM and properties.metadata_partitions:
        yield ReportLine(
            LineKind.METADATA,
            listed_names(properties.metadata_partitions),
            "the metadata table is removed",
            "build its indexes again by lake_reindex; the next write lists the files again",
        )
    is_moved = (properties.layout is Layout.V1) != (target < OWN_TIMELINE_FROM)
    for stream in sorted(streams) if is_moved else ():
        yield ReportLine(
            LineKind.STREAM,
            stream,
            "it takes what it has not replicated by then as a new snapshot (merge-on-read)",
            "let it catch up first",
        )
    savepoints = [i.requested_time for i in evidence.timeline.completed() if i.action is Action.SAVEPOINT]
    if savepoints and is_moved:
        yield ReportLine(
            LineKind.SAVEPOINT, listed_names(savepoints), "a restore to it was not tried", "make a new one afterwards"
        )


def sum_up(plans: Iterable[UpgradePlan], target: int) -> str:
    """Return how many tables are ready, and which releases all writers and readers need."""
    found = list(plans)
    counts = {each: sum(plan.state is each for plan in found) for each in UpgradeState}
    said = ", ".join(f"{count} {each}" for each, count in counts.items() if count)
    downwards = any(plan.version > target for plan in found)
    release = READABLE_FROM.get(target, "?")
    oldest = f"Hudi {release} or newer" + (", 0.x too" if downwards and target < OWN_TIMELINE_FROM else "")
    return (
        f"{len(found)} tables: {said}. Each writer and reader needs {oldest}; no table says which release writes it. "
        "Other engines need a Hudi reader of that release. Stop the writers first; afterwards set "
        f"hoodie.write.table.version={target} in them, or hoodie.write.auto.upgrade=false"
    )
