"""Runs whose task died with its scheduler or worker after its job was done.

Airflow fails such a task when its heartbeat is `[scheduler] task_instance_heartbeat_timeout` old: five minutes, or
the fifteen that let a job outlast an API server. Until then the run would hold its table up for nothing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import ALONE, Service
from airflow_lake_provider.planner.verdict import find_done

if TYPE_CHECKING:
    from airflow_lake_provider.manager.db.leases import Executors
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import ExecutorRow
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway, RunFacts
    from airflow_lake_provider.planner.last_runs import LastRuns
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache

log = logging.getLogger(__name__)

SILENT_MS = 60_000
"""An executor renews its lease every 15 s, and its supervisor reports to Airflow as often: four of each are missing."""


class VanishedExecutors:
    """Ends as successful the runs whose work the timeline shows as done, and whose executor has vanished.

    It frees no plan for another executor (G2): the plan is completed, and a lease stays until its own end, or until a
    later try sees that the holder's process has ended.
    """

    def __init__(
        self, registry: Registry, executors: Executors, gateway: InstanceGateway, views: TableViewCache
    ) -> None:
        self._registry = registry
        self._executors = executors
        self._gateway = gateway
        self._views = views
        self._since_ms: int | None = None

    def end_done_runs(self, table_id: str, base_path: str, last_runs: LastRuns) -> tuple[str, ...]:
        """End a table's runs of this kind, and return their ids. Raises what a refresh of the table raises."""
        now_ms = self._registry.now_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        # After an outage of this server nothing has been renewed yet.
        if not last_runs.open_run_ids() or now_ms - self._since_ms < SILENT_MS:
            return ()
        silent = self._executors.find_silent(table_id, SILENT_MS)
        if not silent:
            return ()
        view = self._views.refresh(base_path)
        return tuple(lease.run_id for lease in silent if self._end_if_done(lease, view, last_runs, now_ms))

    def _end_if_done(self, lease: ExecutorRow, view: TableView, last_runs: LastRuns, now_ms: int) -> bool:
        if lease.service in ALONE:
            return False  # what it did, its next try finds out
        last = last_runs.of.get(Service(lease.service))
        newest_write = last.newest_write if last is not None and last.run_id == lease.run_id else ""
        with self._registry.transaction() as session:
            runs = self._gateway.list_runs(session, lease.table_id, 0)
            run = next((run for run in runs if run.run_id == lease.run_id), None)
            if run is None or not _is_silent(run, lease.try_number, now_ms):
                return False
            done = find_done(view, run.service, str(run.params.get("mode", "")), run.plans, newest_write)
            if not done or not self._executors.lock_unchanged(session, lease):
                return False
            reason = (
                f"the timeline shows {run.service} {', '.join(done)} completed, and try {lease.try_number} has "
                f"not reported for more than {SILENT_MS // 1000} s: the manager ended the run as successful"
            )
            if not self._gateway.complete_run(session, run.run_id, reason):
                return False
            self._executors.drop_ended(session, lease)
        log.warning("table %s: run %s: %s", view.base_path, run.run_id, reason)
        return True


def _is_silent(run: RunFacts, try_number: int, now_ms: int) -> bool:
    """Whether a try runs by Airflow's record, and its supervisor reports no more."""
    task = run.task
    heartbeat_ms = task.heartbeat_ms or task.started_ms or run.created_ms
    is_running = run.is_active and task.state == "running" and task.try_number == try_number
    return is_running and now_ms - heartbeat_ms >= SILENT_MS
