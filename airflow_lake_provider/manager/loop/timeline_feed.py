"""Feeds the registry to a timeline server: its tables, and the marks that any process made since the last poll.

One indexed query per poll. So a hint reaches every timeline server, whichever API server received it, and survives the
restart of all of them.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import or_, select
from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.errors import TimelineServerUnavailableError
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.manager.db.rows import Notice, Source
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.db.typed_rows import columns_of, rows_from
from airflow_lake_provider.timeline_server.server import TableFeed
from airflow_lake_provider.timeline_server.wire import snapshot_from_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.hudi.timeline import Timeline
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.rows import Mark
    from airflow_lake_provider.timeline_server.client import TimelineClient
    from airflow_lake_provider.timeline_server.server import TimelineServer
    from airflow_lake_provider.timeline_server.snapshot import TimelineSnapshot

log = logging.getLogger(__name__)

# Servers' clocks differ, and a mark is committed a little after its time was read.
_OVERLAP_MS = 30_000


@dataclass(frozen=True, slots=True)
class FeedRow:
    """What the feed reads of a row of `lake_table`."""

    table_id: str
    base_path: str
    table_name: str
    dirty_seq: int
    dirty_since_ms: int | None
    last_notice_ms: int | None
    identified_ms: int | None
    last_notice_source: str


class RegistryFeed:
    """Implements the timeline server's HintFeed."""

    def __init__(
        self, registry: Registry, load_tables: Callable[[], TablesConfig], unannounced: UnannouncedCommits | None = None
    ) -> None:
        self._registry = registry
        self._unannounced = unannounced
        self._load_tables = load_tables
        self._seen_ms: int | None = None
        self._seen: dict[str, tuple[int, str]] = {}

    def poll(self) -> Iterable[TableFeed]:
        """Return all tables the first time, then those with a new mark."""
        if self._unannounced is not None:
            self._unannounced.retry()
        tables = self._load_tables()
        since_ms = None if self._seen_ms is None else self._seen_ms - _OVERLAP_MS
        is_first = since_ms is None
        feeds = []
        seen = {}
        for row in self._rows_since(since_ms):
            self._seen_ms = max(self._seen_ms or 0, row.last_notice_ms or 0, row.identified_ms or 0)
            before = self._seen.get(row.table_id)
            now = (row.dirty_seq, row.table_name)
            seen[row.table_id] = now
            if before == now:
                continue
            policy = tables.policy_for(row.base_path, row.table_name)
            # A name that an evaluation has read changes the heartbeat, and needs no refresh.
            is_new = (row.last_notice_ms or 0) > (since_ms or 0) if before is None else before[0] != now[0]
            is_marked = row.dirty_since_ms is not None if is_first else is_new
            feeds.append(_feed_of(row, policy.heartbeat_timeout_s, is_marked=is_marked))
        # What a later poll returns again was among these: of quiet tables nothing is kept.
        self._seen = seen
        if self._seen_ms is None:
            self._seen_ms = 0
        return feeds

    def is_registered(self, base_path: str) -> bool:
        """Whether the registry has the table."""
        return self._registry.find(table_id_of(base_path)) is not None

    def _rows_since(self, since_ms: int | None) -> list[FeedRow]:
        query = select(*columns_of(FeedRow, lake_table))
        if since_ms is not None:
            query = query.where(or_(lake_table.c.last_notice_ms > since_ms, lake_table.c.identified_ms > since_ms))
        with self._registry.transaction() as session:
            return rows_from(FeedRow, session.execute(query))


def _feed_of(row: FeedRow, fixed_pause_s: float | None, *, is_marked: bool) -> TableFeed:
    is_by_writer = row.last_notice_source == Source.COMMIT_CALLBACK
    if not is_marked:
        return TableFeed(row.base_path, is_by_writer=is_by_writer, fixed_pause_s=fixed_pause_s)
    # Marks coalesce and keep only the newest instant, so the feed names no instants: that causes a refresh.
    return TableFeed(
        base_path=row.base_path,
        mark=row.dirty_seq,
        is_by_writer=is_by_writer,
        fixed_pause_s=fixed_pause_s,
    )


# --- What the loop sends to the process's shared timelines, and reads from them


@dataclass(frozen=True, slots=True)
class WatchedTimeline:
    """A table in the memory of a timeline server of its own: the timeline, how old it is, its heartbeat's pause."""

    timeline: Timeline
    age_s: float
    pause_s: float


class TimelineGateway(Protocol):
    """The loop's side of the timeline server."""

    def announce(self, notice: Notice, mark: Mark) -> None:
        """Announce a notice that this process made durable."""

    def pause_s(self, base_path: str) -> float:
        """Return the heartbeat pause of a silent table in seconds; 0 when this process does not watch it."""

    def silence_s(self, base_path: str) -> float:
        """Return for how long a table may stay silent before it is evaluated without a notice, seconds; 0: unknown."""

    def find_watched(self, base_paths: Sequence[str]) -> Mapping[str, WatchedTimeline]:
        """Return what a timeline server of its own has in memory of tables that this process does not watch."""

    def forget(self, base_path: str) -> None:
        """Stop watching a table that the registry forgot."""


class TimelineServerGateway:
    """Calls this process's own timeline server, and, where another process watches the tables, that one's."""

    def __init__(self, server: TimelineServer, watching: TimelineClient | None = None) -> None:
        self._server = server
        self._watching = watching

    def announce(self, notice: Notice, mark: Mark) -> None:
        """Pass the notice to the timeline server as a hint."""
        # Only a commit callback names instants that are completed, and only it shows that a writer announces commits.
        is_by_writer = notice.source is Source.COMMIT_CALLBACK
        instants = notice.instants if is_by_writer else ()
        self._server.hint(TableFeed(mark.base_path, mark.seq, instants, is_by_writer))

    def pause_s(self, base_path: str) -> float:
        """Return the timeline server's heartbeat pause."""
        return self._server.pause_s(base_path)

    def silence_s(self, base_path: str) -> float:
        """Return twice the heartbeat's pause, or, where no process watches tables, what the pause would be."""
        if self._server.options.watches_registered:
            return 2 * self._server.pause_s(base_path)
        # A timeline server of its own is asked when the table is silent: it may have no heartbeat by then.
        return self._server.timelines.pause_ms(base_path) / 1000 if self._watching is None else 0.0

    def find_watched(self, base_paths: Sequence[str]) -> Mapping[str, WatchedTimeline]:
        """Return what the timeline server has read; nothing while it does not answer, or of a table that it must read.

        Neither this process nor the server reads any storage for that.
        """
        if self._watching is None or not base_paths:
            return {}
        try:
            answers = [known["timeline"] for known in self._watching.list_known(base_paths) if known.get("timeline")]
            found = {answer["base_path"]: _watched(answer) for answer in answers if answer["next_evaluation_ms"]}
        except (TimelineServerUnavailableError, KeyError, TypeError) as error:
            log.warning("silent tables are evaluated, because the timeline server does not answer for them: %s", error)
            return {}
        return found

    def forget(self, base_path: str) -> None:
        """Drop the table from this process's timelines; other processes drop it when they find it missing."""
        self._server.timelines.forget(base_path)


def _watched(answer: Mapping[str, Any]) -> WatchedTimeline:
    pause_s = (answer["next_evaluation_ms"] - answer["as_of_ms"]) / 1000
    return WatchedTimeline(snapshot_from_dict(answer).timeline, answer["stale_ms"] / 1000, max(pause_s, 0.0))


# --- Commits that a heartbeat found without a notice: marked like any notice, and retried after a database error


class UnannouncedCommits:
    """Marks tables. The timeline reports a commit once only, so a failed mark is stored here and retried."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[str, ...]] = {}

    def mark(self, base_path: str, instants: tuple[Instant, ...]) -> None:
        """Mark the table; a database error is logged, not raised."""
        times = tuple(instant.requested_time for instant in instants)
        with self._lock:
            self._waiting[base_path] = (*self._waiting.get(base_path, ()), *times)
        try:
            self._mark(base_path)
        except SQLAlchemyError as error:
            log.warning("unannounced commits of %s are marked later: %s", base_path, error)

    def compare(self, base_path: str, snapshot: TimelineSnapshot) -> None:
        """Mark a table that changed while no server watched it: its timeline is ahead of the last evaluation."""
        latest = snapshot.timeline.latest_completed()
        if latest is None:
            return
        try:
            row = self._registry.find(table_id_of(base_path))
        except SQLAlchemyError as error:
            log.warning("table %s is marked, because its last evaluation cannot be read: %s", base_path, error)
            self.mark(base_path, (latest,))
            return
        if row is None or row.evaluated_ms is None:
            return  # not registered, or never evaluated: that one has its mark already
        if snapshot.timeline.latest_completed_time() > row.completed_time:
            self.mark(base_path, (latest,))

    def retry(self) -> None:
        """Retry the failed marks. Raises SQLAlchemyError while the database fails."""
        for base_path in tuple(self._waiting):
            self._mark(base_path)

    def _mark(self, base_path: str) -> None:
        times = self._waiting.get(base_path)
        if times is None:  # another thread was faster
            return
        row = self._registry.find(table_id_of(base_path))
        if row is not None:  # a table that is only read is not registered
            self._registry.mark_dirty(Notice(base_path, row.table_name, Source.HEARTBEAT, times))
        with self._lock:
            # Instants that arrived meanwhile stay; marking a table twice only evaluates it twice.
            if self._waiting.get(base_path) == times:
                del self._waiting[base_path]
