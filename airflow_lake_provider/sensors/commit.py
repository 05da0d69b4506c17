"""Wait for a new completed commit of a Hudi table."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException

from airflow_lake_provider.hooks.lake import DEFAULT_CONN_ID, as_airflow_error
from airflow_lake_provider.hooks.open_tables import timeline_views
from airflow_lake_provider.indexing.wanted_indexes import WantedIndexes
from airflow_lake_provider.sensors.deferrable import DeferrableSensor, validate_event
from airflow_lake_provider.shared.actions import COMPLETED_WRITE_ACTIONS
from airflow_lake_provider.timeline_server.snapshot import Freshness
from airflow_lake_provider.timeline_server.watch import Watch, WatchKind, find_changes, found, tables_of
from airflow_lake_provider.triggers.timeline import TimelineTrigger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from airflow.sdk import Context

    from airflow_lake_provider.timeline_server.views import TimelineViewManager

# --- The shared part of two sensors: poke once, defer, resume


class TimelineSensor(DeferrableSensor):
    """Waits until a table's timeline shows something; base of the sensors of this package.

    Exactly one of `base_path` and `tables` must be given. With `tables` (a list of mappings with `base_path` and
    `after`) one task reads many tables: a table that cannot be read is logged and the others still count.
    With `once` it waits for nothing: it succeeds with what the first poke finds, which may be an empty list.
    Returns the findings as XCom: a list of `{"base_path", "instants", "missing", "after", "error", "incomplete"}`.
    """

    template_fields: Sequence[str] = ("base_path", "after", "tables", "storage_options")
    kind: WatchKind

    def __init__(
        self,
        *,
        base_path: str = "",
        after: str = "",
        tables: list[dict[str, Any]] | None = None,
        actions: Sequence[str] = (),
        storage_options: dict[str, Any] | None = None,
        lake_conn_id: str = DEFAULT_CONN_ID,
        max_age_s: float | None = None,
        once: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.base_path = base_path
        self.after = after
        self.tables = tables
        self.actions = actions
        self.storage_options = storage_options
        self.lake_conn_id = lake_conn_id
        self.max_age_s = max_age_s
        self.once = once
        self._has_poked = False

    def poke(self, context: Context) -> PokeReturnValue:
        """Read every table once."""
        findings = find_changes(self.build_watch(), self.views, self.build_freshness())
        for finding in findings:
            if finding.error is None:
                continue
            if self.tables is None and not finding.error.retriable:
                raise as_airflow_error(finding.error) from finding.error
            self.log.warning("%s", finding.error)
        new = found(findings)
        for finding in new:
            seen = [f"{i.requested_time} {i.action} {i.state}" for i in finding.instants]
            seen += [f"{partition} is missing" for partition in finding.missing]
            self.log.info("table %s: %s", finding.base_path, ", ".join(seen))
            if finding.incomplete:
                self.log.warning("table %s: archived commits may be missing: %s", finding.base_path, finding.incomplete)
        return PokeReturnValue(is_done=self.once or bool(new), xcom_value=[finding.to_dict() for finding in new])

    def execute_complete(self, context: Context, event: dict[str, Any] | None) -> Any:
        """Resume with what the trigger found."""
        return list(validate_event(event)["findings"])

    def build_watch(self) -> Watch:
        """Return the watch of the rendered arguments."""
        if (self.tables is None) == (not self.base_path):
            raise AirflowFailException("give base_path or tables, and not both")
        watched = tables_of(self.base_path, self.after, self.tables)
        actions = frozenset(self.actions) or COMPLETED_WRITE_ACTIONS
        return Watch(self.kind, watched, actions, self.storage_options or {}, self.wanted.find_missing)

    @cached_property
    def wanted(self) -> WantedIndexes:
        """Return the indexes that the tables must have; only a sensor of index builds needs any."""
        return WantedIndexes()

    @cached_property
    def views(self) -> TimelineViewManager:
        """The source of this task's timelines."""
        return timeline_views(self.lake_conn_id, self.storage_options or {})

    def build_freshness(self) -> Freshness:
        """Return how old an answer may be: of age 0 at first, then half a poke interval.

        Neither holds for commits of tables whose writers announce them; `max_age_s`, when given, always does.
        """
        if self.max_age_s is not None:
            return Freshness(max_age_s=self.max_age_s)
        is_first, self._has_poked = not self._has_poked and not self.reschedule, True
        return self.build_watch().freshness(0.0 if is_first else float(self.poke_interval) / 2)

    def build_trigger(self) -> TimelineTrigger:
        """Return the trigger that continues to poll."""
        watch = self.build_watch()
        return TimelineTrigger(
            kind=watch.kind.value,
            tables=[list(pair) for pair in watch.tables],
            poll_interval_s=float(self.poke_interval),
            actions=sorted(str(action) for action in watch.actions),
            storage_options=dict(watch.storage_options),
            lake_conn_id=self.lake_conn_id,
            indexes=self.wanted.to_dict(),
        )


class HudiCommitSensor(TimelineSensor):
    """Succeeds when a commit completed after `after` (exclusive); empty `after` means any completed commit.

    :param base_path: the table's base path (templated).
    :param after: requested time of an instant on the timeline, or a completed time (templated). Commits are ordered
        by completion, so a slow writer's commit that was requested earlier is not missed. To wait for the next one,
        pass the `after` of the last result.
    :param tables: instead of one table, a list of mappings with `base_path` and `after` (templated).
    :param actions: timeline actions that count; without them `commit`, `deltacommit` and `replacecommit`.
    :param storage_options: how to open the store; the task then reads it itself. Without them it reads from the
        timeline server, else with the connection in `[lake] storage_conn_ids`.
    :param deferrable: wait in the triggerer instead of a worker.
    """

    kind = WatchKind.COMMIT
