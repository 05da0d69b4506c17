"""The table at the demo's end, and the checks that decide its exit code. Read from the timelines, not from memory."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.properties import ProcessZone
from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.planner.facts import COMPACT_OPERATION, TableFacts
from airflow_lake_provider.planner.table_view import TableView, TableViewCache
from airflow_lake_provider.shared.actions import Action


@dataclass(frozen=True, slots=True)
class TableReport:
    """The result of one table. Durations in seconds."""

    name: str
    kind: str
    writes: tuple[str, ...]
    """Requested times of the completed commits."""
    compactions: tuple[Instant, ...]
    pending: tuple[Instant, ...]
    log_files_before: int
    log_bytes_before: int
    log_files_after: int
    log_bytes_after: int
    commit_to_start_s: tuple[float, ...]
    overlapped_commits: int
    """Commits that began while a compaction ran, and both ended well."""


def report_table(base_path: Path, runs: list[dict[str, Any]], starts: dict[str, datetime]) -> TableReport:
    """Build the report of one table; `runs` are its DAG runs, `starts` when each run's task began."""
    view = TableViewCache().refresh(str(base_path))
    compactions = tuple(i for i in view.timeline.completed() if _is_compaction(view, i))
    writes = [i for i in view.timeline.completed_writes if i not in compactions]
    backlog = TableFacts(view).backlog
    evidence = [run["conf"].get("evidence", {}) for run in runs]
    return TableReport(
        name=base_path.name,
        kind=f"{'MOR' if view.properties.table_type == 'MERGE_ON_READ' else 'COW'} v{view.properties.version}",
        writes=tuple(write.requested_time for write in writes),
        compactions=compactions,
        pending=view.timeline.pending(Action.COMPACTION),
        log_files_before=max((int(e.get("log_files") or 0) for e in evidence), default=0),
        log_bytes_before=max((int(e.get("log_bytes") or 0) for e in evidence), default=0),
        log_files_after=backlog.log_files,
        log_bytes_after=backlog.log_bytes,
        commit_to_start_s=_delays(view, runs, starts),
        overlapped_commits=sum(_overlaps(write, compactions) for write in writes),
    )


def _is_compaction(view: TableView, instant: Instant) -> bool:
    metadata = view.commits.get(instant.requested_time)
    return instant.action is Action.COMMIT and metadata is not None and metadata.operation == COMPACT_OPERATION


def _overlaps(write: Instant, compactions: tuple[Instant, ...]) -> bool:
    return any(c.requested_time < write.requested_time < (c.completed_time or "") for c in compactions)


def _delays(view: TableView, runs: list[dict[str, Any]], starts: dict[str, datetime]) -> tuple[float, ...]:
    completed = {i.requested_time: i.completed_time for i in view.timeline.completed()}
    delays = []
    for run in runs:
        newest = run["conf"].get("evidence", {}).get("newest_write")
        completed_time = completed.get(newest or "")
        started = starts.get(run["dag_run_id"])
        # The demo's tables have time zone LOCAL, and its writers run in this process's zone.
        completed_ms = instant_time_ms(completed_time or "", ProcessZone())
        if completed_ms is not None and started:
            delays.append(started.timestamp() - completed_ms / 1000)
    return tuple(delays)


def print_table(reports: list[TableReport]) -> None:
    """Print one row per table."""
    header = f"{'table':<11}{'kind':<8}{'commits':>8}{'compactions':>12}{'log files':>16}{'log KiB':>18}"
    header += f"{'commit to start':>17}"
    print(header)
    print("-" * len(header))
    for report in reports:
        files = f"{report.log_files_before} -> {report.log_files_after}"
        sizes = f"{report.log_bytes_before / 1024:.0f} -> {report.log_bytes_after / 1024:.0f}"
        delays = sorted(report.commit_to_start_s)
        delay = f"{delays[0]:.1f} to {delays[-1]:.1f} s" if delays else "-"
        print(
            f"{report.name:<11}{report.kind:<8}{len(report.writes):>8}{len(report.compactions):>12}"
            f"{files:>16}{sizes:>18}{delay:>17}"
        )
