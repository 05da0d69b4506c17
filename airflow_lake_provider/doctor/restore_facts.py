"""Read what a restore to a savepoint would take back. Nothing is written."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.doctor.evidence import collect_evidence
from airflow_lake_provider.doctor.restore_check import RestoreFacts, find_taken_back
from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.hudi.active_writes import heartbeat_rule
from airflow_lake_provider.hudi.commit_metadata import load_commit_metadata
from airflow_lake_provider.hudi.file_content import load_record
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.properties import parse_java_properties
from airflow_lake_provider.hudi.timeline import load_metadata_timeline
from airflow_lake_provider.instant_clock import format_instant_time
from airflow_lake_provider.job_contract import METADATA_TABLE
from airflow_lake_provider.shared.actions import Action, State

if TYPE_CHECKING:
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.doctor.evidence import Evidence
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.storage.table_storage import Storage

FILES = "files"
"""The metadata table's list of the table's files, which is no index."""
PARTITION_METADATA = ".hoodie_partition_metadata"
NO_INSTANT_BEFORE = "1"
"""What begins with a zero is no time: Hudi numbers the metadata table's first commits so."""
MAX_BYTES = 10_000
"""Limit of a partition's own metadata, which has two lines."""


def load_restore_facts(storage: Storage, policy: TablePolicy, savepoint: str, now_ms: int) -> RestoreFacts:
    """Read the table, and the metadata of each write that a restore would take back. Raises as `collect_evidence`."""
    evidence = collect_evidence(
        storage,
        now_ms,
        heartbeat_rule(policy.hudi_options),
        policy.spark_conf,
        hudi_options=policy.hudi_options,
        reads_all=True,
    )
    return RestoreFacts(
        evidence,
        savepoint,
        MappingProxyType(_load_commits(storage, evidence, savepoint)),
        MappingProxyType(_load_index_births(storage, evidence)),
        load_metadata_timeline(storage),
        resumes=any(_find_target(storage, evidence, i) == savepoint for i in evidence.timeline.pending(Action.RESTORE)),
    )


def _find_target(storage: Storage, evidence: Evidence, restore: Instant) -> str:
    """Return the savepoint that a pending restore goes to; empty where its plan does not say it."""
    properties = evidence.properties
    plan = Instant(restore.requested_time, Action.RESTORE, State.REQUESTED, None, "")
    try:
        record = load_record(storage, f"{properties.timeline_path}/{properties.layout.file_name(plan)}")
    except (FileNotFoundError, DamagedFileError):
        return ""
    return str((record or {}).get("savepointToRestoreTimestamp") or "")


def _load_commits(storage: Storage, evidence: Evidence, savepoint: str) -> dict[str, CommitMetadata]:
    commits = {}
    for instant in find_taken_back(evidence.timeline, evidence.properties.table_type, savepoint):
        if instant.is_completed:
            try:
                commit = load_commit_metadata(storage, evidence.properties.timeline_path, instant)
            except (FileNotFoundError, DamagedFileError):  # a damaged one is among the evidence's problems
                continue
            commits[instant.requested_time] = commit
    return commits


def _load_index_births(storage: Storage, evidence: Evidence) -> dict[str, str]:
    """Return since which instant each index is there; Hudi writes it when it makes the index's folder.

    Where a writer made the index instead of an index build, Hudi may write no time, and the file's own one counts.
    """
    births = {}
    properties = evidence.properties
    for name in {*properties.metadata_partitions, *properties.metadata_partitions_inflight} - {FILES}:
        path = f"{METADATA_TABLE}/{name}/{PARTITION_METADATA}"
        entry = storage.stat(path)
        if entry is None:
            continue
        try:
            text = storage.read_bytes(path, MAX_BYTES).decode("utf-8", "replace")
        except FileNotFoundError:  # dropped meanwhile
            continue
        time = parse_java_properties(text).get("commitTime", "")
        is_known = time > NO_INSTANT_BEFORE
        births[name] = time if is_known else format_instant_time(entry.modified_ms, evidence.zone.zone)
    return births
