"""What instants of different time zones did, or may do, to a table, in words: for the doctor and the table's page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_lake_provider.instant_clock import describe_foreign, find_foreign, find_overtaken, listed, remedy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from airflow_lake_provider.instant_clock import Stamp
    from airflow_lake_provider.timeline.job_zone import JobZone


@dataclass(frozen=True, slots=True)
class ZoneTrouble:
    """One thing that is wrong. `instant` is the commit that writes were sorted before; empty when none were yet."""

    instant: str
    says: str
    holds_up: str
    repair: str


def find_zone_trouble(stamps: Sequence[Stamp], zone: JobZone, table_zone: str, now_ms: int) -> Iterator[ZoneTrouble]:
    """Yield what is wrong with the zones of a table's instants. Pure."""
    foreign = find_foreign(stamps, zone.offset_ms, now_ms)
    if foreign is not None:
        yield ZoneTrouble(
            "",
            describe_foreign(foreign, zone.name, table_zone),
            "every service: none is started until the newest instants are all of the jobs' zone",
            remedy(table_zone),
        )
    overtaken = find_overtaken(stamps, zone.offset_ms)
    if overtaken is not None:
        yield ZoneTrouble(
            overtaken.instant,
            f"{len(overtaken.writes)} writes ({listed(overtaken.writes)}) were made after {overtaken.action} "
            f"{overtaken.instant} and sort before it: they were named in another time zone than it",
            "readers: rows of these writes are stale or missing, and cleaning removes their files for good",
            "run writers and jobs in one time zone, wait until its clock has passed this instant, then write the rows "
            "of these writes again, from their source",
        )
