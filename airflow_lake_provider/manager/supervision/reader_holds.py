"""Opens, renews and ends holds of readers, within what a table's policy allows.

A reader holds what the table is when it asks, or what it was at an instant; it begins when the hold is firm, which no
clean that is at work without knowledge of the hold can undo. What was cleaned before cannot be held any more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from airflow_lake_provider.errors import HoldLostError, HoldRefusedError
from airflow_lake_provider.hudi.file_content import load_record
from airflow_lake_provider.hudi.properties import zone_of_jobs
from airflow_lake_provider.manager.db.holds import NewHold, ReaderHolds
from airflow_lake_provider.manager.read_model import ReportedHold
from airflow_lake_provider.manager.supervision.writers_and_sinks import held_bytes
from airflow_lake_provider.planner.reader_hold import find_needed
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Callable

    from airflow_lake_provider.config.policies import HoldPolicy, TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import HoldRow
    from airflow_lake_provider.planner.table_view import TableView, TableViewCache


@dataclass(frozen=True, slots=True)
class WantedHold:
    """What a reader asks for."""

    reader: str
    reason: str = ""
    at_instant: str = ""
    """The instant as of which it reads; empty: the newest."""
    ttl_s: float = 300.0
    """The hold ends after so long without a renewal."""
    lasts_s: float | None = None
    """The hold ends after so long in any case; None: as long as the table's policy allows."""
    token: str = ""
    """The name of the token by which it asks; empty: a command of an operator's."""


@dataclass(frozen=True, slots=True)
class HeldNow:
    """A hold, and the runs that it waits for: the reader begins when there are none."""

    row: HoldRow
    waits_for: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HoldKeeper:
    """Serves readers, from any API server and from commands."""

    registry: Registry
    load_tables: Callable[[], TablesConfig]
    views: TableViewCache

    @property
    def holds(self) -> ReaderHolds:
        """The holds in the database."""
        return ReaderHolds(self.registry)

    def add(self, table_id: str, wanted: WantedHold) -> HeldNow:
        """Hold files of a table. Raises TableUnknownError, HoldRefusedError, and what reading the table raises."""
        base_path, policy = self._find(table_id)
        require_possible(base_path, policy, wanted)
        view = self.views.refresh(base_path)
        now_ms = self.registry.now_ms()
        zone = zone_of_jobs(view.properties.time_zone, policy.spark_conf).zone
        needed = find_needed(view.timeline, wanted.at_instant, zone, now_ms)
        latest_ms = int(min(now_ms, needed.replaced_ms) + policy.holds.max_hold_s * 1000)
        until_ms = latest_ms if wanted.lasts_s is None else int(now_ms + wanted.lasts_s * 1000)
        if not now_ms < until_ms <= latest_ms:
            replaced_s = (now_ms - needed.replaced_ms) // 1000
            rest_s = max(0, latest_ms - now_ms) // 1000
            raise HoldRefusedError(
                f"table {base_path}: what is read as of {wanted.at_instant or needed.instant} has been replaced for "
                f"{replaced_s:,} s, so a hold may last {rest_s:,} s "
                f"more (holds.max_hold_s: {policy.holds.max_hold_s:,.0f}): ask for less, or for a newer instant"
            )
        self._require_there(view, wanted.at_instant, needed.instant)
        new = NewHold(
            wanted.reader,
            wanted.reason,
            needed.instant,
            wanted.at_instant,
            int(wanted.ttl_s * 1000),
            until_ms,
            wanted.token,
        )
        return self.renew(table_id, self.holds.add(table_id, new))

    def renew(self, table_id: str, hold_id: str) -> HeldNow:
        """Prolong a hold. Raises HoldLostError when it has ended, or ends here because it keeps too much."""
        row = self.holds.renew(table_id, hold_id)
        if not row.is_firm:
            return self._make_firm(row)
        base_path, policy = self._find(table_id)
        self._require_small(row, base_path, policy.holds)
        return HeldNow(row)

    def _find(self, table_id: str) -> tuple[str, TablePolicy]:
        row = self.registry.get(table_id)
        base_path = row.base_path
        # The name in a notice selects no policy.
        name = row.table_name if row.is_identified else self.views.refresh(base_path).properties.name
        return base_path, self.load_tables().policy_for(base_path, name)

    def _make_firm(self, row: HoldRow) -> HeldNow:
        unaware = self.holds.find_unaware(row)
        if unaware:
            return HeldNow(row, tuple(unaware))
        base_path, _ = self._find(row.table_id)
        try:
            # One that has ended by now may have taken what the reader asked for.
            self._require_there(self.views.refresh(base_path), row.at_instant, row.hold)
        except HoldRefusedError:
            self.holds.release(row.table_id, row.hold_id)
            raise
        self.holds.set_firm(row.hold_id)
        return HeldNow(replace(row, is_firm=True))

    def _require_there(self, view: TableView, at_instant: str, hold: str) -> None:
        """Raise HoldRefusedError when a clean took files of the past that is to be read; the present has all of its."""
        clean = view.timeline.last_completed(Action.CLEAN)
        if not at_instant or clean is None:
            return
        path = f"{view.properties.timeline_path}/{clean.file_name}"
        record = load_record(self.views.storage(view.base_path), path) or {}
        kept = str(record.get("earliestCommitToRetain") or "")
        if not kept or kept > hold:
            what = f"kept what readers since {kept} need" if kept else "kept no commits' files"
            raise HoldRefusedError(
                f"table {view.base_path}: files as of {at_instant} may be cleaned already: "
                f"clean {clean.requested_time} {what}, and {hold} is needed"
            )

    def _require_small(self, row: HoldRow, base_path: str, policy: HoldPolicy) -> None:
        if policy.max_held_bytes is None:
            return
        view = self.views.refresh(base_path)
        writes = [w.requested_time for w in view.timeline.completed_writes if w.requested_time in view.commits]
        held = held_bytes(writes, view.commits.__getitem__, row.hold)
        if held > policy.max_held_bytes:
            self.holds.release(row.table_id, row.hold_id)
            raise HoldLostError(
                f"the hold of {row.reader} on table {base_path} has ended: it kept {held:,} bytes of replaced files "
                f"(holds.max_held_bytes: {policy.max_held_bytes:,})"
            )


def require_possible(base_path: str, policy: TablePolicy, wanted: WantedHold) -> None:
    """Raise HoldRefusedError for a hold that the policy does not allow, whatever is held. Pure."""
    rules = policy.holds
    if not rules.enabled:
        raise HoldRefusedError(f"table {base_path}: readers may hold no files (holds.enabled: false)")
    if policy.clean.policy == "versions":
        raise HoldRefusedError(
            f"table {base_path}: clean.policy: versions counts no commits, so it can keep none for a reader: use "
            "commits or hours"
        )
    for name, seconds in (("ttl_s", wanted.ttl_s), ("lasts_s", wanted.lasts_s)):
        if seconds is not None and seconds > rules.max_hold_s:
            raise HoldRefusedError(
                f"table {base_path}: {name} is {seconds:,.0f} s, and a hold lasts {rules.max_hold_s:,.0f} s at most "
                "(holds.max_hold_s)"
            )


def describe_hold(row: HoldRow, now_ms: int) -> ReportedHold:
    """Return a hold as commands, pages and routes show it."""
    return ReportedHold(
        hold_id=row.hold_id,
        reader=row.reader,
        reason=row.reason,
        hold=row.hold,
        held_s=max(0, now_ms - row.created_ms) // 1000,
        ends_ms=row.ends_ms,
        ends_in_s=max(0, row.ends_ms - now_ms) / 1000,
        until_ms=row.until_ms,
        is_firm=bool(row.is_firm),
    )
