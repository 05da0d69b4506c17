"""A table as Hudi keeps it, by Hudi's rules and not by the planner's: what a clean, an archive, a compaction does.

Sources: `CleanPlanner` (KEEP_LATEST_COMMITS), `TimelineArchiverV2`, `ClusteringUtils`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from types import MappingProxyType

from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.table_view import TableView
from airflow_lake_provider.shared.actions import Action, State
from tests.unit.planner.views import view

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1_795_262_400_000


class Kind(StrEnum):
    """How a table is written."""

    APPEND = "append-only"
    OVERWRITE = "insert overwrite"
    UPSERT = "upsert, copy-on-write"
    DELTA = "upsert, merge-on-read"


@dataclass
class HudiModel:
    """One table. Times are ms after noon; services take effect at once, when their job ends."""

    kind: Kind
    plans_no_clean: bool = False
    """Hudi finds nothing to clean whatever was written."""
    retained: int = 10
    now_ms: int = 0
    active: list[Instant] = field(default_factory=list)
    commits: dict[str, CommitMetadata] = field(default_factory=dict)
    completed: int = 0
    """Writes, compactions among them."""
    most_active: int = 0
    _newest: str = ""
    _replaced_by: list[str] = field(default_factory=list)
    """Requested times of writes whose replaced files are not deleted yet."""

    def time(self) -> str:
        self.now_ms += 1
        moment = NOON + timedelta(milliseconds=self.now_ms)
        return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"

    def view(self) -> TableView:
        made = view(table_type="MERGE_ON_READ" if self.kind is Kind.DELTA else "COPY_ON_WRITE")
        instants = tuple(sorted(self.active, key=lambda instant: instant.sort_key))
        commits = MappingProxyType({time: self.commits[time] for time in (i.requested_time for i in self._writes())})
        return TableView(made.base_path, made.properties, Timeline(instants), commits, str(self.now_ms))

    def write(self) -> None:
        """A writer commits."""
        number = self.completed
        if self.kind is Kind.DELTA:
            self._complete(Action.DELTACOMMIT, _stat("a", ".a_0.log.1_0-1-0", 10))
        elif self.kind is Kind.APPEND:
            self._complete(Action.COMMIT, _stat(f"g{number}", f"g{number}_0-1-0_0.parquet", is_new=True))
        elif self.kind is Kind.UPSERT:
            self._replaced_by.append(self._complete(Action.COMMIT, _stat("a", "a_0-1-0_0.parquet")))
        else:
            stat = _stat(f"g{number}", f"g{number}_0-1-0_0.parquet", is_new=True)
            replaced = (("p", self._newest),) if self._newest else ()
            self._newest = stat.file_id
            self._replaced_by.append(self._complete(Action.REPLACECOMMIT, stat, replaced=replaced))

    def run(self, service: Service) -> bool:
        """A service does what there is to do; return whether there was anything."""
        done = {Service.CLEAN: self._clean, Service.ARCHIVE: self._archive, Service.COMPACTION: self._compact}
        return done[service]()

    def _clean(self) -> bool:
        writes = sorted(i.requested_time for i in self._writes())
        if self.plans_no_clean or len(writes) <= self.retained:
            return False
        earliest = writes[len(writes) - self.retained]
        old = [time for time in self._replaced_by if time < earliest]
        if not old:
            return False
        self._replaced_by = [time for time in self._replaced_by if time >= earliest]
        self._complete(Action.CLEAN)
        return True

    def _archive(self) -> bool:
        writes = sorted(self._writes(), key=lambda instant: instant.requested_time)
        if len(writes) <= 30:
            return False
        # A replacecommit whose replaced files are there would give them back to the readers.
        kept = [i.requested_time for i in writes if i.action is Action.REPLACECOMMIT]
        boundary = min((time for time in kept if time in self._replaced_by), default="9")
        old = {i.requested_time for i in writes[: len(writes) - 20] if i.requested_time < boundary}
        has_some = bool(old)
        first = min((i.requested_time for i in writes if i.requested_time not in old), default="9")
        # Cleans go with the writes around them.
        old |= {i.requested_time for i in self.active if i.action is Action.CLEAN and i.requested_time < first}
        self.active = [instant for instant in self.active if instant.requested_time not in old]
        return has_some

    def _compact(self) -> bool:
        last = max((i.requested_time for i in self._writes() if i.action is Action.COMMIT), default="")
        if not any((i.completed_time or "") > last for i in self._writes() if i.action is Action.DELTACOMMIT):
            return False
        self._replaced_by.append(self._complete(Action.COMMIT, _stat("a", "a_0-1-0_0.parquet"), operation="COMPACT"))
        return True

    def _complete(
        self,
        action: Action,
        *stats: WriteStat,
        operation: str = "UPSERT",
        replaced: tuple[tuple[str, str], ...] = (),
    ) -> str:
        requested, completed = self.time(), self.time()
        self.active.append(
            Instant(requested, action, State.COMPLETED, completed, f"{requested}_{completed}.{action.value}")
        )
        self.commits[requested] = CommitMetadata(operation, stats, replaced)
        self.completed += action is not Action.CLEAN
        self.most_active = max(self.most_active, len(self._writes()))
        return requested

    def _writes(self) -> list[Instant]:
        return [instant for instant in self.active if instant.action is not Action.CLEAN]


def _stat(group: str, name: str, size_bytes: int = 1000, *, is_new: bool = False) -> WriteStat:
    return WriteStat("p", group, f"p/{name}", size_bytes, size_bytes, is_new)
