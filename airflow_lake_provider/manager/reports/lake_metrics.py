"""The lake as Prometheus reads it: totals, each owner, and by name the tables and sinks that are worst.

Every figure comes from the registry, so each API server answers the same, and an answer costs no call of a store. How
many series there are does not depend on the number of tables: `MAX_OWNERS`, `MAX_TABLES` and `MAX_SINKS` bound them.
"""

from __future__ import annotations

import hashlib
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cachetools import TTLCache
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.manager.db.holds import ReaderHolds
from airflow_lake_provider.manager.db.search import (
    Sort,
    TableSearch,
    load_numbers,
    load_worst_owners,
    page_of_tables,
)
from airflow_lake_provider.manager.db.sinks import list_most_behind
from airflow_lake_provider.manager.health.health import (
    ATTENTION,
    OWED,
    SEVERITY,
    TableState,
    parse_decisions,
    parse_health,
    state_of_decision,
)
from airflow_lake_provider.manager.reports.places import places_of_readers
from airflow_lake_provider.manager.scheduling.budgets import load_scopes
from airflow_lake_provider.manager.supervision.writers_and_sinks import hold_ends_ms
from airflow_lake_provider.planner.ranking import Pressure
from airflow_lake_provider.shared.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from prometheus_client.core import Metric

    from airflow_lake_provider.config.access import Audience, Grant
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.operations import RunHour
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.search import LakeNumbers, OwnerNumbers
    from airflow_lake_provider.manager.db.typed_rows import HoldOfTable, ListedTable, SinkOfTable
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway
    from airflow_lake_provider.manager.scheduling.budgets import ScopeState
    from airflow_lake_provider.request_bounds import Places

MAX_OWNERS = 50
MAX_TABLES = 50
MAX_SINKS = 50
MAX_BUDGETS = 50
MAX_PROBLEMS = 10
"""Of one table."""
MAX_LABEL = 200
"""Characters of a label's value."""
KEPT_S = 10.0
"""How long an answer is kept: several Prometheus servers, and impatient ones, cost one reading."""
MAX_KEPT = 32
"""Answers of tokens with different roots."""
AT_ONCE = 4
AT_ONCE_OF_ONE = 2
NO_OWNER = "none"
_OF_TABLE = ("table", "database", "owner", "path")


@dataclass(frozen=True, slots=True)
class LakeReading:
    """What the registry says at one moment, for those whom an audience lets see it."""

    now_ms: int
    numbers: LakeNumbers
    owners: Sequence[OwnerNumbers]
    tables: Sequence[ListedTable]
    """The worst first."""
    sinks: Sequence[SinkOfTable]
    runs: Sequence[RunHour]
    holds: Sequence[HoldOfTable] = ()
    """Those of readers, the ones that began first."""
    budgets: Sequence[ScopeState] = ()
    problems: int | None = None
    """How many sentences say what stops or delays all tables; None for those who may not see all."""
    swept_s: int | None = None


class LakeMetrics:
    """Answers with the lake's metrics in Prometheus' text format; safe to call from many threads."""

    def __init__(
        self,
        registry: Registry,
        load_tables: Callable[[], TablesConfig],
        instances: InstanceGateway,
        find_problems: Callable[[], Sequence[str]],
        find_swept_s: Callable[[int], int | None],
    ) -> None:
        self._registry = registry
        self._load_tables = load_tables
        self._instances = instances
        self._find_problems = find_problems
        self._find_swept_s = find_swept_s
        self._kept: TTLCache[Any, bytes] = TTLCache(MAX_KEPT, KEPT_S)
        self._lock = threading.Lock()
        self._places: Places = places_of_readers("metrics", "token", AT_ONCE, AT_ONCE_OF_ONE)

    def render(self, reader: Grant) -> bytes:
        """Return the metrics of the tables that a token may read. Raises PagesBusyError."""
        with self._places.hold(reader.name), self._lock:
            body = self._kept.get(reader.roots)
            if body is None:
                registry = CollectorRegistry()
                registry.register(_Lake(self._read(reader.audience, is_whole=reader.roots is None)))
                body = self._kept[reader.roots] = generate_latest(registry)
            return body

    def _read(self, audience: Audience, *, is_whole: bool) -> LakeReading:
        now_ms = self._registry.now_ms()
        search = TableSearch(sort=Sort.WORST, limit=MAX_TABLES, audience=audience)
        with self._registry.transaction() as session:
            runs = self._instances.count_runs(session, now_ms - DAY_MS, audience)
        reading = LakeReading(
            now_ms,
            load_numbers(self._registry, audience),
            load_worst_owners(self._registry, audience, MAX_OWNERS),
            page_of_tables(self._registry, search).rows,
            list_most_behind(self._registry, audience, MAX_SINKS),
            runs,
            ReaderHolds(self._registry).list_all(audience, MAX_SINKS),
        )
        if not is_whole:
            return reading
        problems = len(self._find_problems())
        return replace(reading, budgets=self._find_budgets(), problems=problems, swept_s=self._find_swept_s(now_ms))

    def _find_budgets(self) -> Sequence[ScopeState]:
        try:
            return load_scopes(self._registry, self._load_tables())
        except LakeError:
            return ()  # `lake_problems` counts wrong settings


def owner_of(owner: str) -> str:
    """Return an owner as a label has it: of tables without one a word that stands for no other."""
    return f"'{owner}'" if owner == NO_OWNER else owner or NO_OWNER


def label_of(text: str) -> str:
    """Return a text as a label's value: nothing in it hides, and a long one is cut and stays unlike others."""
    shown = plain(text)
    return shown if len(shown) <= MAX_LABEL else f"{shown[:MAX_LABEL]}~{hashlib.sha256(text.encode()).hexdigest()[:8]}"


class _Family:
    """A gauge whose samples are added by their labels' values."""

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.metric = GaugeMetricFamily(name, text, labels=labels)
        self._added = set[tuple[str, ...]]()

    def add(self, value: float | None, *labels: str) -> None:
        """Add a sample; nothing for a value that is not known, or for names that are shown like others before."""
        shown = tuple(map(label_of, labels))
        if value is not None and shown not in self._added:
            self._added.add(shown)
            self.metric.add_metric(shown, value)


class _Lake(Collector):
    def __init__(self, reading: LakeReading) -> None:
        self.reading = reading

    def collect(self) -> Iterable[Metric]:
        """Return every metric of the reading."""
        families = [
            *self._totals(),
            *self._whole(),
            *self._of_owners(),
            *self._of_tables(),
            *self._of_sinks(),
            *self._of_readers(),
        ]
        return [family.metric for family in families]

    def _totals(self) -> Iterator[_Family]:
        reading = self.reading
        numbers = reading.numbers
        states = _Family("lake_tables", "Tables by state", ("state",))
        for state, tables in numbers.by_state.items():
            states.add(tables, state.value)
        marks = _Family("lake_tables_marked", "Tables that are paused or observed", ("mark",))
        for mark, tables in numbers.marked.items():
            marks.add(tables, mark.value)
        yield states
        yield marks
        attention = sum(numbers.by_state[state] for state in ATTENTION)
        for name, text, value in (
            ("lake_tables_need_attention", "Tables in a state that a person has to act on", attention),
            ("lake_log_bytes", "Bytes in log files that no compaction has merged", numbers.log_bytes),
            ("lake_holes", "Pending writes or plans with completed writes behind them", numbers.holes),
            (
                "lake_oldest_due_seconds",
                "Since when the service is due that has waited longest and does not run; 0: none waits",
                _age_s(reading.now_ms, numbers.oldest_due_ms) or 0.0,
            ),
            (
                "lake_oldest_notice_seconds",
                "Since when the oldest request for an evaluation waits",
                _age_s(reading.now_ms, numbers.oldest_dirty_ms) or 0.0,
            ),
        ):
            family = _Family(name, text)
            family.add(value)
            yield family
        runs = _Family("lake_runs_last_day", "Runs of services of the last 24 hours", ("service", "state"))
        seconds = _Family("lake_run_seconds_last_day", "What their tasks took", ("service", "state"))
        sums: dict[tuple[str, str], tuple[int, float]] = {}
        for hour in reading.runs:
            count, run_s = sums.get((hour.service, hour.state), (0, 0.0))
            sums[hour.service, hour.state] = count + hour.runs, run_s + hour.run_s
        for of, (count, run_s) in sorted(sums.items()):
            runs.add(count, *of)
            seconds.add(run_s, *of)
        yield from (runs, seconds)

    def _whole(self) -> Iterator[_Family]:
        """What concerns all tables; a token with roots gets none of it."""
        problems = _Family("lake_problems", "What stops or delays all tables; GET /reports/problems says it")
        problems.add(self.reading.problems)
        swept = _Family("lake_last_sweep_seconds", "Since when lake_watch last succeeded")
        swept.add(self.reading.swept_s)
        pressure = _Family("lake_budget_pressure", "0 ok, 1 writers should slow down, 2 stop", ("budget",))
        waiting = _Family("lake_budget_waiting", "Services that wait for the budget", ("budget",))
        core_s = _Family("lake_budget_waiting_core_seconds", "What these are expected to cost", ("budget",))
        order = list(Pressure)
        for state in self.reading.budgets[:MAX_BUDGETS]:
            pressure.add(order.index(state.pressure), state.limit.shown)
            waiting.add(state.load.waiting, state.limit.shown)
            core_s.add(state.load.waiting_core_ms / 1000, state.limit.shown)
        yield from (problems, swept, pressure, waiting, core_s)

    def _of_owners(self) -> Iterator[_Family]:
        tables = _Family("lake_owner_tables", "Tables of an owner; of the 50 with the most problems", ("owner",))
        attention = _Family("lake_owner_tables_need_attention", "Those a person has to act on", ("owner",))
        log_bytes = _Family("lake_owner_log_bytes", "Bytes in their log files", ("owner",))
        due = _Family("lake_owner_oldest_due_seconds", "Since when their longest wait lasts", ("owner",))
        for one in self.reading.owners:
            owner = owner_of(one.owner)
            tables.add(one.tables, owner)
            attention.add(one.need_attention, owner)
            log_bytes.add(one.log_bytes, owner)
            due.add(_age_s(self.reading.now_ms, one.oldest_due_ms) or 0.0, owner)
        yield from (tables, attention, log_bytes, due)

    def _of_tables(self) -> Iterator[_Family]:
        severity = _Family("lake_table_severity", "How bad the state is, 70 stuck to 0; of the 50 worst", _OF_TABLE)
        log_bytes = _Family("lake_table_log_bytes", "Bytes in its log files", _OF_TABLE)
        commit = _Family("lake_table_last_commit_seconds", "Since when no commit has changed rows", _OF_TABLE)
        due = _Family(
            "lake_table_due_seconds", "Since when a service is due and does not run", (*_OF_TABLE, "service", "state")
        )
        problem = _Family(
            "lake_table_problem_seconds", "Since when it has a problem", (*_OF_TABLE, "state", "source", "subject")
        )
        now_ms = self.reading.now_ms
        for listed in self.reading.tables:
            row = listed.table
            labels = (row.table_name, row.database_name, owner_of(row.owner), row.base_path)
            severity.add(SEVERITY[TableState(listed.summary.state)], *labels)
            log_bytes.add(listed.summary.log_bytes, *labels)
            commit.add(_age_s(now_ms, row.last_commit_ms), *labels)
            for decision in parse_decisions(row.decisions):
                state = state_of_decision(decision)
                if state in OWED:
                    due.add(_age_s(now_ms, decision.get("since_ms")), *labels, str(decision["service"]), state.value)
            for one in parse_health(row.health).heard[:MAX_PROBLEMS]:
                problem.add(_age_s(now_ms, one.since_ms), *labels, one.state.value, one.source.value, one.subject)
        yield from (severity, log_bytes, commit, due, problem)

    def _of_sinks(self) -> Iterator[_Family]:
        labels = ("table", "path", "sink")
        lag = _Family(
            "lake_sink_lag_seconds", "Since when it lacks a change; 0: it lacks none; of the 50 worst", labels
        )
        still = _Family("lake_sink_without_progress_seconds", "Since when it lacks one and made no progress", labels)
        failures = _Family("lake_sink_failed_runs", "Runs that failed since the last success", labels)
        hold = _Family("lake_sink_hold_ends_seconds", "Until its hold is released unless it is renewed", labels)
        paused = _Family("lake_sink_paused", "1: a person has paused it", labels)
        now_ms = self.reading.now_ms
        for of_table in self.reading.sinks:
            row = of_table.sink
            of = (of_table.table_name, of_table.base_path, row.sink)
            due_ms = row.due_ms
            lag.add(_age_s(now_ms, due_ms or now_ms), *of)
            still.add(_age_s(now_ms, max(due_ms, row.renewed_ms) if due_ms else now_ms), *of)
            failures.add(row.failures, *of)
            hold.add(max(0, hold_ends_ms(row) - now_ms) / 1000, *of)
            paused.add(int(row.paused), *of)
        yield from (lag, still, failures, hold, paused)

    def _of_readers(self) -> Iterator[_Family]:
        labels = ("table", "path", "reader")
        held = _Family(
            "lake_reader_hold_seconds", "Since when a reader holds files; of the 50 that began first", labels
        )
        ends = _Family("lake_reader_hold_ends_seconds", "Until its hold ends in any case", labels)
        now_ms = self.reading.now_ms
        # A reader may hold a table twice.
        for one in {(one.base_path, one.hold.reader): one for one in reversed(self.reading.holds)}.values():
            of = (one.table_name, one.base_path, one.hold.reader)
            held.add(_age_s(now_ms, one.hold.created_ms), *of)
            ends.add(max(0, one.hold.until_ms - now_ms) / 1000, *of)
        yield from (held, ends)


def _age_s(now_ms: int, since_ms: int | None) -> float | None:
    return None if since_ms is None else max(0, now_ms - since_ms) / 1000
