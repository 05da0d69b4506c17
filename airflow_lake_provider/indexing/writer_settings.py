"""What the settings that the tables file declares for a table mean for its index builds. Pure.

Settings of writers are written down nowhere in a table. What the tables file declares (`hudi_options`) is advice that
is checked here; what writers really do, the build finds out under the table's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.indexing.index_spec import IndexKind
from airflow_lake_provider.job_contract import find_lock_problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from airflow_lake_provider.indexing.index_spec import IndexSpec

STREAMING_WRITE = "hoodie.metadata.streaming.write.enabled"
AUTO_DELETE = "hoodie.metadata.auto.delete.partitions"
EMBEDDED_SERVER = "hoodie.embed.timeline.server"
NEED_EMBEDDED_SERVER = frozenset({IndexKind.PARTITION_STATS, IndexKind.EXPRESSION_INDEX})


def find_setting_problems(specs: Sequence[IndexSpec], declared: Mapping[str, str]) -> tuple[str, ...]:
    """Return in sentences what is wrong with the declared settings for these indexes; the lock rule first."""
    problems = []
    lock = find_lock_problem(declared)
    if lock is not None:
        problems.append(lock)
    if _is(declared, AUTO_DELETE, "true"):
        problems.append(f"{AUTO_DELETE}=true: writers would drop indexes that they do not name; set false")
    if _is(declared, STREAMING_WRITE, "true"):
        problems.append(f"{STREAMING_WRITE}=true: builds wait for a moment without writers; set it to false")
    needing = [spec.partition for spec in specs if spec.kind in NEED_EMBEDDED_SERVER]
    if needing and _is(declared, EMBEDDED_SERVER, "false"):
        problems.append(
            f"{EMBEDDED_SERVER}=false: Hudi 1.2's writers fail on a table with {', '.join(needing)} then; set true"
        )
    return tuple(problems)


def _is(declared: Mapping[str, str], key: str, value: str) -> bool:
    return declared.get(key, "").strip().lower() == value
