"""The table as a service sees it before and after its job: asked of the storage itself, never of a cache (G3)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from airflow_lake_provider.indexing.table_indexes import load_holes
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.operators.service_effect import read_effect
from airflow_lake_provider.planner.lock_rule import require_guarded_writers
from airflow_lake_provider.timeline.heartbeat import heartbeat_rule, load_heartbeats
from airflow_lake_provider.timeline.loader import load_timeline
from airflow_lake_provider.timeline.metadata_table import load_metadata_timeline
from airflow_lake_provider.timeline.properties import load_table_properties
from airflow_lake_provider.timeline.service_plan import tell_clusterings
from airflow_lake_provider.timeline.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from airflow_lake_provider.job_contract import ServiceRequest
    from airflow_lake_provider.operators.service_effect import ServiceEffect
    from airflow_lake_provider.timeline.properties import TableProperties
    from airflow_lake_provider.timeline.storage import Storage


class TableReader:
    """Reads one table. Every method asks the storage anew."""

    def __init__(self, base_path: str, open_table: Callable[[str], Storage]) -> None:
        self.base_path = base_path
        self._storage = open_table(base_path)

    def properties(self) -> TableProperties:
        """Return the table's properties."""
        return load_table_properties(self._storage)

    def timeline(self) -> Timeline:
        """Return the active timeline, with clusterings told from insert overwrites."""
        properties = self.properties()
        return tell_clusterings(self._storage, properties, load_timeline(self._storage, properties))

    def timeline_of(self, service: Service) -> Timeline:
        """Return the active timeline that a service works on: the table's, or its metadata table's."""
        if service is Service.METACOMPACTION:
            return load_metadata_timeline(self._storage) or Timeline()
        return self.timeline()

    def explain_holes(self, service: Service, hudi_options: Mapping[str, str]) -> tuple[str, ...]:
        """Return in sentences what is in the way of the last completed write; of interest to index builds only."""
        if service is not Service.INDEXING:
            return ()
        return load_holes(self._storage, int(time.time() * 1000), heartbeat_rule(hudi_options)).explain()

    def effect_of(self, instants: Iterable[str]) -> ServiceEffect:
        """Return what completed instants say they did."""
        return read_effect(self._storage, instants)

    def require_guarded_writers(self, wanted: ServiceRequest) -> None:
        """Raise WriterUnguardedError when a writer may be at work that takes no part in the locking.

        A rollback that names a write vouches for it: whoever names one without a heartbeat knows its writer is dead.
        """
        # Heartbeats before and after the timeline: a writer's beat begins before its instant and ends after it.
        heartbeats = load_heartbeats(self._storage)
        vouched_for = frozenset(wanted.instants if wanted.service is Service.ROLLBACK else ())
        writes = {instant.requested_time for instant in self.timeline().pending_writes()} - vouched_for
        if writes:
            require_guarded_writers(writes, heartbeats | load_heartbeats(self._storage), self.base_path)
