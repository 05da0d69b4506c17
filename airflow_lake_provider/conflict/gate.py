"""Asks who is at work on a table, and then whether a service may begin: storage here, the rules in `admission`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.conflict.admission import Admission, AdmissionVerdict, Intent, admit
from airflow_lake_provider.conflict.expected_write import DEFAULT_DURATION_MS, expect_write, last_duration_ms
from airflow_lake_provider.job_contract import Mode, Service

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.conflict.conflict_table import ConflictTable
    from airflow_lake_provider.policies import ConflictPolicy
    from airflow_lake_provider.timeline.commit_metadata import CommitMetadata

GO_UNASKED = Admission(AdmissionVerdict.GO, "early conflict detection was not asked")


def needs_admission(service: Service, mode: Mode, policy: ConflictPolicy) -> bool:
    """Whether anything but "go" can be the answer: only a clustering stands in writers' way."""
    return policy.enabled and service is Service.CLUSTERING and mode is not Mode.WITHDRAW


def ask_admission(
    table: ConflictTable,
    commits: Mapping[str, CommitMetadata],
    plans: tuple[str, ...],
    policy: ConflictPolicy,
    now_ms: int,
) -> Admission:
    """Return whether a clustering may begin now: of the pending plans, or of a new one.

    `commits` is the metadata of completed writes on the active timeline, by requested time: from it come the known
    partitions, the expected writes and how long a clustering takes. Raises what looking at a table raises.
    """
    activity = table.look(now_ms)
    writes = activity.snapshot.timeline.completed_writes_by_completion()
    intent = Intent(
        Service.CLUSTERING,
        plans,
        frozenset(stat.partition for metadata in commits.values() for stat in metadata.stats),
        last_duration_ms(writes, commits) or DEFAULT_DURATION_MS,
    )
    expected = None if plans else expect_write(activity.snapshot, commits, now_ms)
    return admit(intent, activity, expected, int(policy.period_s * 1000), table.rule.most_ms)
