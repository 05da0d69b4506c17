"""One action on several tables: which tables, what it would do to each, and what it did.

Each table stands for itself: what is refused for one, with its reason, keeps none of the others from it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING

from sqlalchemy.exc import SQLAlchemyError

from airflow_lake_provider.config.own_settings import apply_own
from airflow_lake_provider.config.tables_source import Pause, pause_tables_in_overrides
from airflow_lake_provider.doctor.repairs import ServiceCall
from airflow_lake_provider.errors import LakeError, MalformedRequestError, TableUnknownError
from airflow_lake_provider.hudi.base_path import require_allowed
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.manager.db.rows import TableLease
from airflow_lake_provider.manager.db.search import TableSearch, page_of_tables
from airflow_lake_provider.manager.db.snoozes import Snoozes
from airflow_lake_provider.manager.health.health import parse_decisions, parse_health
from airflow_lake_provider.manager.runs.dag_problems import find_service_dag_problem
from airflow_lake_provider.manager.scheduling.scheduling import StartVerdict
from airflow_lake_provider.planner.rules import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_config import TablesConfig
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import TableRow
    from airflow_lake_provider.manager.reports.reports import Reports
    from airflow_lake_provider.manager.scheduling.run_scheduler import ByHand

MAX_TABLES = 200
"""Maximum number of tables of one action."""
NOT_IN_BULK = frozenset({Service.SAVEPOINT, Service.ORPHANS, Service.INDEXING})
"""Services whose runs by hand name more than a table."""


class BulkVerdict(StrEnum):
    """What an action does to one table."""

    DONE = "done"
    """It did it; of a dry run: it would."""
    NOTHING = "nothing"
    """The table is already as the action would leave it."""
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class BulkLine:
    """What an action does, or did, to one table."""

    table_id: str
    table: str
    base_path: str
    verdict: BulkVerdict
    reason: str
    run_id: str = ""


@dataclass(frozen=True, slots=True)
class BulkChoice:
    """Which tables: those of some ids, or, with `matching`, all that a search finds and that have the label."""

    table_ids: tuple[str, ...] = ()
    matching: TableSearch | None = None
    label: str = ""


@dataclass(frozen=True, slots=True)
class ByPerson:
    """The person that acts, why, and until when it lasts."""

    name: str
    why: str = ""
    until_ms: int | None = None

    @property
    def words(self) -> str:
        """Name and reason, for people."""
        return self._with_why(self._named)

    @property
    def _named(self) -> str:
        return self.name or "a user"

    def _with_why(self, text: str) -> str:
        why = self.why.strip()
        return f"{text}: {why}" if why else text

    def pause(self, service: Service | None, now_ms: int, *, is_paused: bool) -> Pause:
        """Return the pause of a table or service, or its end. Raises MalformedRequestError."""
        if self.until_ms is not None and self.until_ms <= now_ms:
            raise MalformedRequestError("until_ms: a pause ends in the future")
        at = datetime.fromtimestamp(now_ms / 1000, UTC)
        by = self._with_why(f"{self._named} on {at:%Y-%m-%d %H:%M} UTC")
        until = None if self.until_ms is None else datetime.fromtimestamp(self.until_ms / 1000, UTC).isoformat()
        return Pause(is_paused, "" if service is None else service.value, by, until)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The chosen tables, and a line for each id of no table that the audience may see."""

    rows: tuple[TableRow, ...]
    unknown: tuple[BulkLine, ...] = ()


def choose_tables(registry: Registry, tables: TablesConfig, choice: BulkChoice, seen: Audience) -> Chosen:
    """Return the chosen tables that the audience may see. Raises MalformedRequestError for too many, and for none."""
    if choice.matching is None:
        return _find_by_id(registry, choice.table_ids, seen)
    rows = _find_matching(registry, tables, replace(choice.matching, audience=seen), choice.label)
    if not rows:
        raise MalformedRequestError("no table matches: name tables, or another filter")
    if len(rows) > MAX_TABLES:
        raise MalformedRequestError(
            f"more than {MAX_TABLES} tables match, the maximum at a time: narrow the filter, or set it for all of them "
            "in the tables file"
        )
    return Chosen(tuple(rows))


def _find_by_id(registry: Registry, table_ids: Sequence[str], seen: Audience) -> Chosen:
    rows = []
    unknown = []
    for table_id in dict.fromkeys(table_ids):
        row = registry.find(table_id)
        try:
            seen.require_table(table_id, None if row is None else row.base_path)
        except TableUnknownError as error:
            unknown.append(BulkLine(table_id, table_id, "", BulkVerdict.REFUSED, str(error)))
            continue
        if row is not None:
            rows.append(row)
    return Chosen(tuple(rows), tuple(unknown))


def _find_matching(registry: Registry, tables: TablesConfig, search: TableSearch, label: str) -> list[TableRow]:
    rows: list[TableRow] = []
    while True:
        page = page_of_tables(registry, replace(search, limit=MAX_TABLES))
        found = [listed.table for listed in page.rows]
        rows += [row for row in found if not label or tables.policy_for(row.base_path, row.table_name).label == label]
        if not page.after or len(rows) > MAX_TABLES:
            return rows
        search = replace(search, after=page.after)


@dataclass(frozen=True, slots=True)
class BulkActions:
    """Does one action on several tables; with `is_dry` it changes nothing, and says what it would do."""

    reports: Reports
    allowed_roots: tuple[str, ...]

    def find_run_problem(self) -> str:
        """Return why no run begins at present, such as a paused DAG; empty when nothing is in the way."""
        return find_service_dag_problem(self.reports.find_lake_dags())

    # --- Run a service

    def run(self, rows: Sequence[TableRow], service: Service, by: ByHand, *, is_dry: bool) -> list[BulkLine]:
        """Start a run of a service of each table, due or not; not of one that is observed, paused or blocked."""
        if service in NOT_IN_BULK:
            raise MalformedRequestError(f"a run of {service} names more than its table: start it on the table's page")
        tables = self.reports.tables.load()
        return [_line(row, lambda one: self._run_one(one, tables, service, by, is_dry=is_dry)) for row in rows]

    def _run_one(self, row: TableRow, tables: TablesConfig, service: Service, by: ByHand, *, is_dry: bool) -> BulkLine:
        policy = self._policy_of(row, tables)
        require_allowed(row.base_path, self.allowed_roots)
        refusal = self._find_refusal(row, tables, policy, service)
        if refusal:
            return _said(row, BulkVerdict.REFUSED, refusal)
        call = ServiceCall(service, Mode.SCHEDULE_AND_EXECUTE)
        lease = TableLease(row.table_id, row.base_path, row.table_name, "", "", 0, 0, 0, owner=row.owner)
        start = self.reports.run_scheduler.start_by_hand(lease, policy, call, by, is_dry=is_dry)
        if start.verdict is StartVerdict.START:
            return _said(row, BulkVerdict.DONE, _last_reason(row, service), start.run_id)
        is_active = start.verdict is StartVerdict.ALREADY_ACTIVE
        return _said(row, BulkVerdict.NOTHING if is_active else BulkVerdict.REFUSED, start.reason, start.run_id)

    def _policy_of(self, row: TableRow, tables: TablesConfig) -> TablePolicy:
        policy = tables.policy_for(row.base_path, row.table_name)
        if not policy.table_may_set:
            return policy
        return apply_own(policy, self.reports.views.refresh(row.base_path).properties.raw).policy

    def _find_refusal(self, row: TableRow, tables: TablesConfig, policy: TablePolicy, service: Service) -> str:
        observed = _find_why_observed(row, tables, policy)
        if observed:
            return f"the manager starts nothing on this table: {observed}"
        paused = policy.find_pause(service.value, self.reports.registry.now_ms())
        if paused:
            return f"{service} is paused by {paused}: resume it first"
        last = _last_decision(row, service)
        return str(last.get("reason", "")) if last.get("verdict") == Verdict.BLOCKED else ""

    # --- Pause and resume

    def pause(
        self, rows: Sequence[TableRow], text: str, service: Service | None, pause: Pause
    ) -> tuple[str, list[BulkLine]]:
        """Return the Variable's text with the tables, or a service of each, paused or not any more. Writes nothing.

        Raises ConfigError for a text that cannot be written back.
        """
        tables = self.reports.tables.load()
        lines = {row.table_id: self._find_in_the_way(row, tables, service, pause) for row in rows}
        wanted = [(row.base_path, row.table_name) for row in rows if lines[row.table_id] is None]
        changed, refused = pause_tables_in_overrides(text, wanted, pause) if wanted else (text, {})
        return changed, [lines[row.table_id] or self._paused_line(row, tables, refused, service) for row in rows]

    def _find_in_the_way(
        self, row: TableRow, tables: TablesConfig, service: Service | None, pause: Pause
    ) -> BulkLine | None:
        if not pause.is_paused:
            return None
        policy = tables.policy_for(row.base_path, row.table_name)
        observed = _find_why_observed(row, tables, policy)
        if observed:
            # The entry that a pause adds names the table's path, which would let a discovered table run.
            return _said(row, BulkVerdict.REFUSED, f"the manager starts nothing on this table: {observed}")
        before = self._find_pause(policy, service)
        return _said(row, BulkVerdict.NOTHING, f"paused already, by {before}") if before else None

    def _paused_line(
        self, row: TableRow, tables: TablesConfig, refused: dict[str, str], service: Service | None
    ) -> BulkLine:
        if row.base_path not in refused:
            return _said(row, BulkVerdict.DONE, "")
        paused = self._find_pause(tables.policy_for(row.base_path, row.table_name), service)
        if paused:
            return _said(row, BulkVerdict.REFUSED, f"paused by {paused}: {refused[row.base_path]}")
        return _said(row, BulkVerdict.NOTHING, "not paused")

    def _find_pause(self, policy: TablePolicy, service: Service | None) -> str:
        now_ms = self.reports.registry.now_ms()
        if service is not None:
            return policy.find_pause(service.value, now_ms)
        return (policy.paused or "") if policy.is_paused_at(now_ms) else ""

    # --- Snooze

    def snooze(self, rows: Sequence[TableRow], by: ByPerson, *, is_dry: bool) -> list[BulkLine]:
        """Silence what each table has now until `by.until_ms`; None ends what is silenced."""
        return [_line(row, lambda one: self._snooze_one(one, by, is_dry=is_dry)) for row in rows]

    def _snooze_one(self, row: TableRow, by: ByPerson, *, is_dry: bool) -> BulkLine:
        snoozes = Snoozes(self.reports.registry)
        if by.until_ms is None:
            keys = snoozes.find(row.table_id)
        else:
            keys = [one.key for one in parse_health(row.health).problems]
        names = ", ".join(key.subject or key.source.value for key in keys)
        if not keys:
            return _said(row, BulkVerdict.NOTHING, "no problem" if by.until_ms is not None else "nothing is silenced")
        if not is_dry and by.until_ms is None:
            snoozes.end(row.table_id, keys)
        elif not is_dry and by.until_ms is not None:
            snoozes.add(row.table_id, keys, by.words, by.until_ms)
        return _said(row, BulkVerdict.DONE, names)


def _find_why_observed(row: TableRow, tables: TablesConfig, policy: TablePolicy) -> str:
    return tables.find_why_observed(row.base_path, policy, is_only_discovered=row.is_only_discovered)


def _last_reason(row: TableRow, service: Service) -> str:
    """Return what the last evaluation says of the service: a run by hand need not be due."""
    last = _last_decision(row, service)
    if not last:
        return ""
    due = "due" if last.get("verdict") == Verdict.DUE else "not due"
    return f"{due}: {last.get('reason', '')}"


def _last_decision(row: TableRow, service: Service) -> Mapping[str, object]:
    """Return the last evaluation's decision about a service; empty when it has none."""
    return next((one for one in parse_decisions(row.decisions) if one.get("service") == service.value), {})


def _said(row: TableRow, verdict: BulkVerdict, reason: str, run_id: str = "") -> BulkLine:
    return BulkLine(row.table_id, row.table_name, row.base_path, verdict, reason, run_id)


def _line(row: TableRow, act: Callable[[TableRow], BulkLine]) -> BulkLine:
    """Return what an action did to one table; its error is that table's alone."""
    try:
        return act(row)
    except LakeError as error:
        return _said(row, BulkVerdict.REFUSED, str(error))
    except SQLAlchemyError as error:
        reason = f"Airflow's database failed ({type(error).__name__}): see the table's page, and try again"
        return _said(row, BulkVerdict.REFUSED, reason)
