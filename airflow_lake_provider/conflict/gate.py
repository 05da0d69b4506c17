"""Asks who is at work on a table, and then whether a service may begin: storage here, the rules in `admission`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.active_instant import Role
from airflow_lake_provider.conflict.admission import Admission, AdmissionVerdict, Intent, admit
from airflow_lake_provider.conflict.expected_write import DEFAULT_DURATION_MS, expect_write, last_duration_ms
from airflow_lake_provider.job_contract import Mode, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.conflict.conflict_table import ConflictTable
    from airflow_lake_provider.policies import ConflictPolicy
    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata

_ROLES = {
    Service.CLUSTERING: Role.CLUSTERING,
    Service.COMPACTION: Role.COMPACTION,
    Service.LOGCOMPACTION: Role.LOG_COMPACTION,
}

GO_UNASKED = Admission(AdmissionVerdict.GO, "early conflict detection was not asked")


def needs_admission(service: Service, mode: Mode, policy: ConflictPolicy) -> bool:
    """Whether anything but "go" can be the answer: only what rewrites file groups stands in writers' way."""
    return policy.enabled and service in _ROLES and mode is not Mode.WITHDRAW


def needs_watch(service: Service, mode: Mode, policy: ConflictPolicy) -> bool:
    """Whether a writer can come in the service's way while it runs: only a clustering is stopped for one."""
    return service is Service.CLUSTERING and mode is not Mode.SCHEDULE and needs_admission(service, mode, policy)


def find_pending_plans(table: ConflictTable, service: Service, now_ms: int) -> tuple[str, ...]:
    """Return the pending plans of a service that needs admission, by what they hold: up to table version 6 a
    clustering's action is that of an insert overwrite. Raises what looking at a table raises.
    """
    return tuple(plan.instant for plan in table.look(now_ms).plans() if plan.role is _ROLES[service])


def ask_admission(
    service: Service,
    table: ConflictTable,
    commits: Mapping[str, CommitMetadata],
    plans: tuple[str, ...],
    policy: ConflictPolicy,
    now_ms: int,
) -> Admission:
    """Return whether a service may begin now: with the pending plans, or with a new one.

    `commits` is the metadata of completed writes on the active timeline, by requested time: from it come the known
    partitions, the expected writes and how long a clustering takes; no other service needs it. Raises what looking at
    a table raises.
    """
    activity = table.look(now_ms)
    writes = activity.snapshot.timeline.completed_writes_by_completion()
    intent = Intent(
        service,
        plans,
        frozenset(stat.partition for metadata in commits.values() for stat in metadata.stats),
        last_duration_ms(writes, commits) or DEFAULT_DURATION_MS,
        table.hudi_options,
    )
    expected = None if plans or service is not Service.CLUSTERING else expect_write(activity.snapshot, commits, now_ms)
    return admit(intent, activity, expected, int(policy.period_s * 1000), table.rule.most_ms)
