"""Which living writers a plan may fail: the rules of `airflow_lake_provider.conflict.admission`, as a job needs them.

Pure. The source of each rule is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import COMPACTIONS_PASS_FROM, WRITERS_FIRST, Service

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping


@dataclass(frozen=True, slots=True)
class LivingWriter:
    """A pending write whose heartbeat is fresh; `partitions` is None while it has not announced what it touches."""

    instant: str
    partitions: frozenset[str] | None = None


def asks_writers(
    service: Service, table_version: int, options: Mapping[str, str], *, by_1_0: Callable[[], bool] = lambda: False
) -> bool:
    """Return whether a plan of this service can fail a writer of such a table, and the request cares.

    `by_1_0` says whether Hudi 1.0 writes the table: it fails its writers at any compaction that was planned after
    they began (tried with 1.0.2 on version 8), as all versions do on tables of version 6.
    """
    if options.get(WRITERS_FIRST) != "true":
        return False
    if service is Service.COMPACTION:
        return table_version < COMPACTIONS_PASS_FROM or by_1_0()
    return service in (Service.LOGCOMPACTION, Service.CLUSTERING)


def find_in_the_way(
    service: Service, writers: Iterable[LivingWriter], partitions: Collection[str] | None = None
) -> LivingWriter | None:
    """Return the first writer that a new plan may fail. Pure.

    A clustering and a deletion of partitions fail those that touch their partitions (None: any), a compaction may take
    any file group.
    """
    for writer in writers:
        if service not in (Service.CLUSTERING, Service.TTL) or writer.partitions is None or partitions is None:
            return writer
        if not writer.partitions.isdisjoint(partitions):
            return writer
    return None


def find_in_the_way_of_plan(
    plan: str, partitions: Collection[str], recent: Collection[str] | None, writers: Iterable[LivingWriter]
) -> LivingWriter | None:
    """Return the first writer that a clustering plan of these partitions may fail.

    One that has announced nothing may touch what the last writes touched (`recent`; None: anything). One that began
    before the plan may yet put new rows into any file group of its partitions; one that began after it has passed
    Hudi's refusal when it announces.
    """
    for writer in writers:
        if writer.partitions is None:
            touched = recent
        elif writer.instant < plan:
            touched = writer.partitions
        else:
            continue
        if touched is None or not frozenset(touched).isdisjoint(partitions):
            return writer
    return None
