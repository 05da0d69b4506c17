"""Refuses to commit a clustering whose files a write has changed since it was planned."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.timeline_head import COMPLETED
from lake_jobs.hudi.metadata_writes import read_commit_metadata
from lake_jobs.hudi.plans import read_plan
from lake_jobs.hudi.table import parse_instants
from lake_jobs.verify.overtaken_rules import LaterWrite, find_overtaking
from lake_jobs.verify.sample import files_of_plan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from lake_jobs.hudi.table import LoadedTable

_WORDS = re.compile(r"[^\[\]{},=/\s]+")


class PlanOvertakenError(Exception):
    """A write changed what a plan rewrites; nothing was committed, and no later try can commit the plan."""


def require_current(spark: SparkSession, state: LoadedTable, plan: str) -> None:
    """Raise PlanOvertakenError when a write has changed what a clustering's plan rewrites. Raises Py4JJavaError.

    No archiver passes a pending plan, so all writes since are on the active timeline.
    """
    planned = {file_id for _, file_id in files_of_plan(read_plan(spark, state, Service.CLUSTERING, plan))}
    overtaking = find_overtaking(planned, _writes_since(state, plan))
    if overtaking:
        raise PlanOvertakenError(
            f"{overtaking}: nothing was committed. All writers of this table need the lock provider, "
            "hoodie.write.concurrency.mode and hoodie.clustering.updates.strategy of the services"
        )


def _writes_since(state: LoadedTable, plan: str) -> Iterator[LaterWrite]:
    """Yield the writes that completed after a plan was requested: in layout 1 Hudi takes the time of their files."""
    completed = state.timeline.getCommitsTimeline().filterCompletedInstants().getInstants()
    listed = parse_instants(str(completed.toString()), int(completed.size()))
    for at, instant in enumerate(listed):
        if instant.state != COMPLETED or (instant.completed_time or instant.requested_time) <= plan:
            continue
        metadata = read_commit_metadata(state, completed.get(at))
        yield LaterWrite(
            instant.requested_time,
            str(metadata.getOperationType().name()),
            _words(metadata.getFileIdAndRelativePaths()),
            _words(metadata.getPartitionToReplaceFileIds()) if instant.action == Action.REPLACECOMMIT else frozenset(),
        )


def _words(found: Any) -> frozenset[str]:
    """Return the words of a Java map by one call of Java, among them the file ids, which are no other words."""
    return frozenset(_WORDS.findall(str(found.toString())))
