"""Tables and policies for decisions about services."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import ArchivePolicy, CleanPolicy, ClusteringPolicy, CompactionPolicy
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action
from tests.unit.planner.views import base, commit, completed, view

LOCK = MappingProxyType(
    {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
)
POLICY = TablePolicy(
    compaction=CompactionPolicy(delta_commits=100, log_to_base_ratio=None),
    clustering=ClusteringPolicy(enabled=True, small_files=3, small_file_bytes=1000),
    clean=CleanPolicy(commits=3, retained_commits=2),
    archive=ArchivePolicy(min_commits=4, max_commits=6),
    hudi_options=LOCK,
)


def cow(count: int, *, plans: tuple[Any, ...] = (), cleaned: int | None = None) -> TableView:
    """Return a copy-on-write table with that many commits, one base file each of 5,000 bytes in one file group."""
    writes = [(completed(2 * n, Action.COMMIT), commit(base("a", 5000))) for n in range(count)]
    if cleaned is not None:
        plans = (*plans, completed(cleaned, Action.CLEAN))
    return view(*writes, plans=plans, table_type="COPY_ON_WRITE")
