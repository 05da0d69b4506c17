"""What the doctor looks at, read from storage once. Nothing is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError, LakeError
from airflow_lake_provider.timeline.content import decode
from airflow_lake_provider.timeline.heartbeat import load_heartbeats
from airflow_lake_provider.timeline.instant import Action
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.properties import META_FOLDER, TableProperties, load_table_properties
from airflow_lake_provider.timeline.timeline import Timeline, TimelineProblem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.timeline.storage import Storage

LOCK_FILE = f"{META_FOLDER}/lock"
METADATA_TABLE = f"{META_FOLDER}/metadata"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One table at one moment. Times are ms since the epoch, by the store's clock."""

    base_path: str
    now_ms: int
    properties: TableProperties
    timeline: Timeline
    touched_ms: Mapping[str, int]
    """Modification time of each pending instant's file, by file name."""
    heartbeats: Mapping[str, int]
    lock_ms: int | None
    """Modification time of the lock file of Hudi's FileSystemBasedLockProvider; None when there is none."""
    clustering_plans: frozenset[str]
    """Requested times of pending replacecommits whose plan is a clustering (layout 1 spells it so)."""
    index_partitions: Mapping[str, frozenset[str]]
    """Metadata partitions that each pending index plan names, by requested time."""
    metadata_compactions: int | None
    """Completed compactions on the metadata table's timeline; None without a metadata table."""
    problems: tuple[TimelineProblem, ...] = ()

    def age_s(self, file_name: str) -> float:
        """Return for how long a pending instant's file was not touched."""
        return max(0, self.now_ms - self.touched_ms.get(file_name, self.now_ms)) / 1000


def collect_evidence(storage: Storage, now_ms: int) -> Evidence:
    """Read what the doctor needs. Raises what reading properties and timeline raises."""
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    touched_ms = {}
    for instant in timeline.pending():
        entry = storage.stat(f"{properties.timeline_path}/{instant.file_name}")
        if entry is not None:
            touched_ms[instant.file_name] = entry.modified_ms
    lock = storage.stat(LOCK_FILE)
    plans, clusterings, indexes = _read_plans(storage, properties, timeline)
    return Evidence(
        base_path=storage.base_path,
        now_ms=now_ms,
        properties=properties,
        timeline=timeline,
        touched_ms=MappingProxyType(touched_ms),
        heartbeats=MappingProxyType(load_heartbeats(storage)),
        lock_ms=None if lock is None else lock.modified_ms,
        clustering_plans=clusterings,
        index_partitions=MappingProxyType(indexes),
        metadata_compactions=_metadata_compactions(storage),
        problems=(*timeline.problems, *plans),
    )


def _read_plans(
    storage: Storage, properties: TableProperties, timeline: Timeline
) -> tuple[list[TimelineProblem], frozenset[str], dict[str, frozenset[str]]]:
    problems: list[TimelineProblem] = []
    clusterings: set[str] = set()
    indexes: dict[str, frozenset[str]] = {}
    for instant in timeline.pending(Action.REPLACECOMMIT, Action.INDEXING):
        name = f"{instant.requested_time}.{instant.action}.requested"
        try:
            record = decode(storage.read_bytes(f"{properties.timeline_path}/{name}"), name) or {}
        except FileNotFoundError:
            continue
        except DamagedFileError as error:
            problems.append(TimelineProblem(name, str(error)))
            continue
        if instant.action is Action.INDEXING:
            infos = record.get("indexPartitionInfos") or ()
            indexes[instant.requested_time] = frozenset(str(info.get("metadataPartitionPath")) for info in infos)
        elif record.get("clusteringPlan"):
            clusterings.add(instant.requested_time)
    return problems, frozenset(clusterings), indexes


def _metadata_compactions(storage: Storage) -> int | None:
    metadata = replace(
        storage, base_path=f"{storage.base_path}/{METADATA_TABLE}", root=f"{storage.root}/{METADATA_TABLE}"
    )
    try:
        timeline = load_timeline(metadata, load_table_properties(metadata))
    except LakeError:
        return None
    return sum(instant.action is Action.COMMIT for instant in timeline.completed())
