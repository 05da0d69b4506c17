"""What commands print of the lake and of one table: overview, list of tables, instances, explanation. Changes nothing.

A route answers a report as JSON, and a command that reaches no manager builds the same one from Airflow's database.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from airflow_lake_provider.config.access import EVERYONE
from airflow_lake_provider.config.kinds import Settings
from airflow_lake_provider.config.own_settings import apply_own, settings_with_own
from airflow_lake_provider.config.tables_source import BUILT_IN, settings_in_force
from airflow_lake_provider.errors import LakeError, MalformedRequestError, TableUnknownError
from airflow_lake_provider.hudi.active_writes import heartbeat_rule
from airflow_lake_provider.hudi.base_path import normalise_base_path, table_id_of
from airflow_lake_provider.indexing.table_indexes import load_holes
from airflow_lake_provider.instant_clock import DAY_MS
from airflow_lake_provider.job_contract import find_lock_problem
from airflow_lake_provider.manager.db.backlog_history import load_compared
from airflow_lake_provider.manager.db.bill import MAX_LINES, day_of, load_bill
from airflow_lake_provider.manager.db.history import KEEP_DAYS, load_history
from airflow_lake_provider.manager.db.holds import ReaderHolds
from airflow_lake_provider.manager.db.operations import OBSERVED, load_outcomes, read_price
from airflow_lake_provider.manager.db.schema import lake_table
from airflow_lake_provider.manager.db.search import (
    Sort,
    TableSearch,
    load_numbers,
    page_of_tables,
)
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.health.health import (
    ATTENTION,
    MarkKind,
    TableState,
    parse_decisions,
    parse_health,
    state_of_decision,
)
from airflow_lake_provider.manager.loop.registered_paths import RegisteredPaths
from airflow_lake_provider.manager.read_model import (
    ActiveInstance,
    BacklogReport,
    BackpressureReport,
    BillReport,
    EndedRuns,
    ExplainedService,
    ExplanationReport,
    HistoryReport,
    OverviewReport,
    ReportedInstance,
    ReportedMark,
    ReportedProblem,
    ReportedRun,
    ReportedSetting,
    ReportedTable,
    RunsReport,
    TablesReport,
)
from airflow_lake_provider.manager.reports.help_places import help_address, help_place
from airflow_lake_provider.manager.reports.places import places_of_readers
from airflow_lake_provider.manager.runs.dag_problems import find_dag_problems
from airflow_lake_provider.manager.scheduling.budgets import (
    find_pressure_problems,
    list_waiting,
    load_scopes,
    load_scopes_of,
    pressure_of_states,
)
from airflow_lake_provider.manager.supervision.instances import InstanceState, load_instances, next_evaluation_ms
from airflow_lake_provider.manager.supervision.reader_holds import describe_hold
from airflow_lake_provider.manager.supervision.writers_and_sinks import WriterChecks, report_requirement
from airflow_lake_provider.planner.conformance import block_unconforming
from airflow_lake_provider.planner.decide import decide_now, load_facts, remember_shown
from airflow_lake_provider.planner.last_runs import parse_last_runs
from airflow_lake_provider.planner.ranking import Pressure
from airflow_lake_provider.planner.rules import Verdict, only_observe
from airflow_lake_provider.timeline_server.snapshot import problems_text

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from airflow_lake_provider.config.access import Audience
    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.config.tables_source import TablesSource
    from airflow_lake_provider.manager.db.bill import BillBy
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.db.typed_rows import ListedTable
    from airflow_lake_provider.manager.loop.evaluation import Admit
    from airflow_lake_provider.manager.runs.airflow_runs import InstanceGateway, LakeDags
    from airflow_lake_provider.manager.scheduling.run_scheduler import RunScheduler
    from airflow_lake_provider.manager.scheduling.scheduling import StartDecision
    from airflow_lake_provider.manager.supervision.instances import Instance
    from airflow_lake_provider.planner.rules import Decision
    from airflow_lake_provider.planner.table_view import TableViewCache
    from airflow_lake_provider.request_bounds import Places

MAX_ENDED = 20
EXPLAINED_AT_ONCE = 4
EXPLAINED_AT_ONCE_OF_ONE = 2
"""Of one token, so that it leaves places for the others."""
"""An explanation reads a table's store; a slow store must not take all threads of an API server."""
_OVER = frozenset({InstanceState.DONE, InstanceState.FAILED})


@dataclass(frozen=True, slots=True)
class TableFound:
    """A table by what a person wrote. One given by its path need not be registered."""

    table_id: str
    base_path: str


def find_table(registry: Registry, text: str, sees: Callable[[str], bool] = lambda _path: True) -> TableFound:
    """Return the table of a base path, an id, a name, or a database and a name (`shop.orders`).

    `sees` says which base paths the caller may see. Raises TableUnknownError, which names what is near.
    """
    if "/" in text:
        base_path = normalise_base_path(text)
        return TableFound(table_id_of(base_path), base_path)
    by_id = registry.find(text)
    rows = [by_id] if by_id is not None else list(registry.find_by_name(text))
    if not rows and "." in text:
        database, _, name = text.partition(".")
        rows = [row for row in registry.find_by_name(name) if row.database_name == database]
    rows = [row for row in rows if sees(row.base_path)]
    if len(rows) == 1:
        return TableFound(rows[0].table_id, rows[0].base_path)
    if rows:
        paths = ", ".join(row.base_path for row in rows)
        raise TableUnknownError(f"{len(rows)} tables have the name {text!r}: give the base path of one: {paths}")
    raise TableUnknownError(f"no table {text!r} in the registry{_describe_near(registry, text, sees)}")


def parse_table_query(query: Mapping[str, str], after: tuple[Any, ...], limit: int) -> TableSearch:
    """Return the search that a command's texts describe. Raises MalformedRequestError."""
    try:
        return TableSearch(
            text=query.get("search", ""),
            states=tuple(map(TableState, filter(None, query.get("state", "").split(",")))),
            database=query.get("database", ""),
            sort=Sort(query.get("sort", Sort.NAME)),
            after=after,
            limit=limit,
            owner=query.get("owner", ""),
            mark=MarkKind(query["mark"]) if query.get("mark") else None,
            is_reverse=query.get("reverse", "") == "true",
        )
    except ValueError as error:
        raise MalformedRequestError(str(error)) from error


def _describe_near(registry: Registry, text: str, sees: Callable[[str], bool]) -> str:
    with registry.transaction() as session:
        rows = session.execute(select(lake_table.c.table_name, lake_table.c.base_path)).all()
    names = sorted({name for name, base_path in rows if sees(base_path)})
    if not names:
        return (
            ", which is empty: give the base path of a table, or connect a writer (`airflow lake init` prints what it "
            "needs)"
        )
    lower = {name.lower(): name for name in names}
    near = get_close_matches(text.lower(), list(lower), n=3)
    near += [name for name in lower if text.lower() in name and name not in near][: 3 - len(near)]
    if near:
        return f": did you mean {' or '.join(lower[name] for name in near)}?"
    return "; `airflow lake tables` lists them, and a base path names any"


@dataclass(frozen=True, slots=True)
class Reports:
    """Builds the reports of one process."""

    registry: Registry
    tables: TablesSource
    views: TableViewCache
    instances: InstanceGateway
    run_scheduler: RunScheduler
    admit: Admit
    find_lake_dags: Callable[[], LakeDags]
    find_process_problems: Callable[[], Sequence[str]] = tuple
    """What is wrong with the manager's process; nothing in a command, which has no loop and receives no notice."""
    places: Places = field(
        default_factory=lambda: places_of_readers("explanations", "token", EXPLAINED_AT_ONCE, EXPLAINED_AT_ONCE_OF_ONE)
    )

    def find_problems(self) -> list[str]:
        """Return what stops or delays all tables, the most severe first."""
        searches = self.tables.searches
        problems = [
            *find_dag_problems(self.find_lake_dags(), self.registry.now_ms(), searches=searches),
            *self.find_process_problems(),
        ]
        settings = self.find_settings_problem()
        if settings:
            problems.append(f"the tables' settings are wrong; servers keep the last good ones: {settings}")
        else:
            problems += find_pressure_problems(self.registry, self.tables.load())
        return problems

    def find_settings_problem(self) -> str:
        """Return what is wrong with the tables file or the Variable; empty when nothing is."""
        try:
            self.tables.load()
        except LakeError as error:
            return str(error)
        return self.tables.problem

    def overview(self) -> OverviewReport:
        """Return the whole lake in numbers.

        `last_day` are its runs by service and state, `days` and `weeks` the last ones and the ones before.
        """
        now_ms = self.registry.now_ms()
        numbers = load_numbers(self.registry, EVERYONE)
        compared = load_compared(self.registry, now_ms)
        with self.registry.transaction() as session:
            hours = self.instances.count_runs(session, now_ms - DAY_MS, EVERYONE)
        runs: dict[tuple[str, str], list[float]] = {}
        for hour in hours:
            found = runs.setdefault((hour.service, hour.state), [0, 0.0])
            found[0] += hour.runs
            found[1] += hour.run_s
        return OverviewReport(
            problems=tuple(self.find_problems()),
            now_ms=now_ms,
            tables=sum(numbers.by_state.values()),
            need_attention=sum(numbers.by_state[state] for state in ATTENTION),
            marked={mark.value: count for mark, count in numbers.marked.items()},
            states={state.value: count for state, count in numbers.by_state.items()},
            databases=dict(numbers.databases),
            backlog_bytes=numbers.log_bytes,
            oldest_dirty_ms=numbers.oldest_dirty_ms,
            oldest_due_ms=numbers.oldest_due_ms,
            holes=numbers.holes,
            days=compared.days,
            weeks=compared.weeks,
            last_day=tuple(
                EndedRuns(service, state, int(count), round(run_s, 1))
                for (service, state), (count, run_s) in sorted(runs.items())
            ),
        )

    def list_tables(self, search: TableSearch) -> TablesReport:
        """Return a page of the tables that match; `next` is the key of the next one, empty on the last."""
        page = page_of_tables(self.registry, search)
        now_ms = self.registry.now_ms()
        return TablesReport(tuple(report_table(row, now_ms) for row in page.rows), page.total, tuple(page.after))

    def list_runs(self, base_path: str) -> RunsReport:
        """Return a table's instances: requested, active, then the newest ended ones. Raises TableUnknownError."""
        table_id = table_id_of(base_path)
        if self.registry.find(table_id) is None:
            raise TableUnknownError(f"no table at {base_path} in the registry; `airflow lake tables` lists them")
        found = load_instances(self.registry, self.instances, self.views, table_id, MAX_ENDED)
        now_ms = self.registry.now_ms()
        with self.registry.transaction() as session:
            outcomes = load_outcomes(session, [one.run_id for one in found if one.run_id])
        rows = [
            ReportedRun(
                **asdict(_report_instance(one)),
                operation=outcomes.get(one.run_id),
                plans=one.plans,
                since_ms=one.since_ms,
                tries=one.tries,
                overdue=one.is_overdue(now_ms),
            )
            for one in found
        ]
        return RunsReport(base_path, tuple(rows))

    def history(self, base_path: str, at_ms: int | None = None) -> HistoryReport:
        """Return what kept a table's services from running, and when they ran, the newest first."""
        table_id = table_id_of(base_path)
        with self.registry.transaction() as session:
            lines = load_history(session, table_id, at_ms)
        return HistoryReport(base_path, self.registry.now_ms(), KEEP_DAYS, tuple(lines))

    def backlog(self, audience: Audience = EVERYONE) -> BacklogReport:
        """Return what waits in its ranked order, what would run on observed tables, and how the budgets bear it.

        A limited audience gets its own tables, and no budget: their figures count all tables.
        """
        tables = self.tables.load()
        states = [] if audience.is_limited else load_scopes(self.registry, tables)
        return BacklogReport(
            now_ms=self.registry.now_ms(),
            waiting=tuple(list_waiting(self.registry, tables, audience=audience)),
            observed=tuple(list_waiting(self.registry, tables, OBSERVED, audience)),
            budgets=tuple(state.report() for state in states),
            pressure=pressure_of_states(states).value,
        )

    def bill(self, by: BillBy, days: int, audience: Audience = EVERYONE) -> BillReport:
        """Return what the services of the last days cost and brought, next to what was predicted of the runs."""
        since_ms = day_of(self.registry.now_ms()) - (days - 1) * DAY_MS
        with self.registry.transaction() as session:
            lines = load_bill(session, by, since_ms, audience)
        return BillReport(by.value, since_ms, len(lines) > MAX_LINES, tuple(lines[:MAX_LINES]))

    def backpressure(self, table_id: str = "", *, figures: bool = True) -> BackpressureReport:
        """Return whether writers should slow down: by the budgets of a table, or by all. Raises TableUnknownError.

        Without `figures` it only names the budgets: their figures count all tables.
        """
        tables = self.tables.load()
        row = self.registry.get(table_id) if table_id else None
        states = load_scopes(self.registry, tables) if row is None else load_scopes_of(self.registry, tables, row)
        pressed = [state for state in states if state.pressure is not Pressure.OK]
        return BackpressureReport(
            pressure=pressure_of_states(states).value,
            budgets=tuple(state.report() for state in pressed) if figures else (),
            text="; ".join(state.explain() if figures else state.name() for state in pressed),
        )

    def explain(self, base_path: str) -> ExplanationReport:
        """Return every service of a table with its rules, what was found, what blocks it, what would start now.

        `settings` are Hudi's and Spark's as well. Raises what reading the table raises.
        """
        view = self.views.refresh(base_path)
        tables_file = self.tables.load()
        own = apply_own(tables_file.policy_for(base_path, view.properties.name), view.properties.raw)
        policy = own.policy
        table_id = table_id_of(base_path)
        now_ms = self.registry.now_ms()
        row = self.registry.find(table_id)
        last_runs = self.run_scheduler.follow_up(parse_last_runs(row.last_runs if row is not None else None))
        facts = load_facts(self.views, view, policy, now_ms, Sinks(self.registry).find_hold(table_id))
        last_runs = remember_shown(facts, policy, last_runs, now_ms)
        writers = WriterChecks(self.registry, self.views, self.instances).check(row, view, policy, now_ms)
        list_below = RegisteredPaths(self.registry).list_below
        decisions = decide_now(self.views, facts, policy, now_ms, last_runs, list_below)
        decisions = block_unconforming(decisions, writers, policy)
        admitted = [self.admit(view, policy, found, now_ms) for found in decisions]
        is_only_discovered = row is not None and row.is_only_discovered
        why = tables_file.find_why_observed(base_path, policy, is_only_discovered=is_only_discovered)
        decided = only_observe(admitted, why)
        due = [decision for decision in decided if decision.verdict is Verdict.DUE]
        starts = self.run_scheduler.preview(table_id, policy, due, last_runs)
        started = {decision.service: start for decision, start in zip(due, starts, strict=True)}
        holes = load_holes(self.views.storage(base_path), now_ms, heartbeat_rule(policy.hudi_options))
        latest = view.timeline.latest_completed()
        newest = "nothing completed" if latest is None else f"last completed {latest.action} {latest.requested_time}"
        return ExplanationReport(
            table=view.properties.name,
            base_path=view.base_path,
            type=view.properties.table_type,
            version=view.properties.version,
            timeline=f"{len(view.timeline.instants)} instants, {len(view.timeline.pending())} pending, {newest}",
            damaged=problems_text(view.problems) if view.problems else "",
            registered=row is not None,
            evaluation_problem="" if row is None else row.problem,
            next_evaluation_ms=None if row is None else next_evaluation_ms(row, now_ms),
            settings_problem=self.tables.problem,
            dag_problems=tuple(find_dag_problems(self.find_lake_dags(), now_ms, searches=self.tables.searches)),
            own_problems=tuple(own.problems),
            lock_problem=find_lock_problem(policy.hudi_options) or "",
            holes=tuple(holes.explain()) if holes.holes else (),
            services=tuple(_explain_service(decision, policy, started.get(decision.service)) for decision in decided),
            holds=tuple(describe_hold(row, now_ms) for row in ReaderHolds(self.registry).list_holds(table_id)),
            writers=tuple(report_requirement(found) for found in writers.rows),
            instances=self._list_active(table_id) if row is not None else (),
            settings=tuple(
                ReportedSetting(one.name, one.value, one.source, one.place)
                for one in settings_with_own(settings_in_force(tables_file, base_path, view.properties.name), own)
                if one.source != BUILT_IN
            ),
        )

    def _list_active(self, table_id: str) -> tuple[ActiveInstance, ...]:
        now_ms = self.registry.now_ms()
        found = load_instances(self.registry, self.instances, self.views, table_id, MAX_ENDED)
        return tuple(
            ActiveInstance(**asdict(_report_instance(one)), overdue=one.is_overdue(now_ms))
            for one in found
            if one.state not in _OVER
        )


def report_table(listed: ListedTable, now_ms: int) -> ReportedTable:
    """Return what a list shows of a table."""
    row = listed.table
    summary = listed.summary
    decisions = parse_decisions(row.decisions)
    health = parse_health(row.health)
    worst = next(iter(health.heard), None)
    return ReportedTable(
        table_id=row.table_id,
        table=row.table_name,
        database=row.database_name,
        state=TableState(summary.state).value,
        since_ms=health.since_ms or None,
        problem="" if worst is None else worst.cause,
        remedy="" if worst is None else worst.remedy,
        help="" if worst is None else help_address(help_place(worst), ""),
        problems=tuple(ReportedProblem(**asdict(one)) for one in health.problems),
        marks=tuple(ReportedMark(**asdict(one)) for one in health.marks),
        log_bytes=summary.log_bytes,
        base_bytes=summary.base_bytes,
        files=summary.files,
        file_bytes=summary.file_bytes,
        due=_services_in(decisions, TableState.RUNNING, TableState.WAITING, TableState.FAILING),
        blocked=_services_in(decisions, TableState.BLOCKED),
        last_commit_ms=row.last_commit_ms,
        last_notice_ms=row.last_notice_ms,
        evaluated_ms=row.evaluated_ms,
        next_evaluation_ms=next_evaluation_ms(row, now_ms),
        owner=row.owner,
        base_path=row.base_path,
    )


def _services_in(decisions: Sequence[Mapping[str, Any]], *states: TableState) -> tuple[str, ...]:
    return tuple(str(decision["service"]) for decision in decisions if state_of_decision(decision) in states)


def _report_instance(instance: Instance) -> ReportedInstance:
    return ReportedInstance(
        service=instance.service,
        state=instance.state.value,
        owner=instance.owner,
        run_id=instance.run_id,
        until_ms=instance.deadline_ms,
        reason=instance.reason,
    )


def _explain_service(decision: Decision, policy: TablePolicy, start: StartDecision | None) -> ExplainedService:
    section = getattr(policy, decision.service.value, None)
    rules = section.model_dump(mode="json", exclude={"paused", "paused_until"}) if isinstance(section, Settings) else {}
    explained = ExplainedService(
        service=decision.service.value,
        verdict=decision.verdict.value,
        reason=decision.reason,
        rules=rules,
        found={key: value for key, value in decision.evidence.items() if value not in {None, ""}},
    )
    if start is None:
        return explained
    return replace(
        explained,
        now=start.verdict.value,
        run_id=start.run_id,
        run_reason=start.reason,
        mode=decision.mode.value,
        plans=tuple(decision.plan_instants),
        price=read_price(start.price),
    )
