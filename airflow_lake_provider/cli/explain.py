"""`airflow lake explain`: every service of a table, its rules, what was found, what is in the way. Changes nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.cli.command import find_table, print_document, run_command
from airflow_lake_provider.config.kinds import Settings
from airflow_lake_provider.hooks.open_tables import open_with_connections
from airflow_lake_provider.hudi.base_path import table_id_of
from airflow_lake_provider.hudi.heartbeat import heartbeat_rule
from airflow_lake_provider.indexing.table_indexes import load_holes
from airflow_lake_provider.job_contract import find_lock_problem
from airflow_lake_provider.manager.db.sinks import Sinks
from airflow_lake_provider.manager.instances import InstanceState, load_instances, moment, next_evaluation_ms
from airflow_lake_provider.manager.reconciler import AdmissionController
from airflow_lake_provider.manager.scheduling import RunScheduler, find_net_problems
from airflow_lake_provider.manager.writers import WriterChecks, row_to_dict
from airflow_lake_provider.planner.conformance import Conformity, block_unconforming
from airflow_lake_provider.planner.decide import decide_now, load_facts, remember_cleaned
from airflow_lake_provider.planner.last_runs import parse_last_runs
from airflow_lake_provider.planner.rules import Verdict, only_observe
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.plugins.dag_runs import AirflowInstanceGateway, AirflowRunGateway
from airflow_lake_provider.plugins.lake_plugin import load_settings, open_registry, open_tables
from airflow_lake_provider.timeline_server.cache import SharedTimelines
from airflow_lake_provider.timeline_server.snapshot import problems_text

if TYPE_CHECKING:
    from argparse import Namespace

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.manager.db.registry import Registry
    from airflow_lake_provider.manager.scheduling import StartDecision
    from airflow_lake_provider.planner.rules import Decision
    from airflow_lake_provider.planner.table_view import TableView

_OVER = frozenset({InstanceState.DONE, InstanceState.FAILED})

TABLE_COLUMNS = ("service", "verdict", "now", "run_id", "reason")
"""What a table shows of a service; JSON and YAML have all."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of a table. Times are UTC, as people read them."""

    table: str
    base_path: str
    type: str
    version: int
    timeline: str
    damaged: str
    settings_problem: str
    evaluation_problem: str
    net_problems: tuple[str, ...]
    next_evaluation: str
    lock_problem: str
    holes: tuple[str, ...] = ()
    """The last completed write without holes, what is in the way, and what happens to the later commits."""
    writers: list[dict[str, Any]] = field(default_factory=list)
    """What the table requires of its writers, as `airflow lake check-writer` prints it."""
    services: list[dict[str, Any]] = field(default_factory=list)
    instances: list[dict[str, Any]] = field(default_factory=list)


def explain(args: Namespace) -> None:
    """Print every service with its rules, the actual values, what blocks it, and what would be started now."""
    run_command(args, _explain)


def _explain(args: Namespace) -> None:
    base_path = find_table(args.table)
    settings, registry = load_settings(), open_registry()
    tables = open_tables(settings)
    open_table = open_with_connections(settings.storage_conn_ids)
    views = TableViewCache(SharedTimelines(open_table=open_table))
    view = views.refresh(base_path)
    tables_file = tables.load()
    policy = tables_file.policy_for(base_path, view.properties.name)
    admission, run_scheduler = AdmissionController(open_table), RunScheduler(registry, AirflowRunGateway(), tables.load)
    now_ms = registry.now_ms()
    hold = Sinks(registry).find_hold(table_id_of(base_path))
    row = registry.find(table_id_of(base_path))
    last_runs = run_scheduler.follow_up(parse_last_runs(row["last_runs"] if row is not None else None))
    facts = load_facts(views, view, policy, now_ms, hold)
    last_runs = remember_cleaned(facts, policy, last_runs, now_ms)
    writers = WriterChecks(registry, views, AirflowInstanceGateway()).check(row, view, policy, now_ms)
    decisions = block_unconforming(decide_now(views, facts, policy, now_ms, last_runs), writers, policy)
    admitted = [admission.admit(view, policy, found, now_ms) for found in decisions]
    is_only_discovered = row is not None and row["is_only_discovered"]
    why_observed = tables_file.find_why_observed(base_path, policy, is_only_discovered=is_only_discovered)
    decided = only_observe(admitted, why_observed)
    due = [decision for decision in decided if decision.verdict is Verdict.DUE]
    starts = run_scheduler.preview(table_id_of(base_path), policy, due, last_runs)
    started = {decision.service: start for decision, start in zip(due, starts, strict=True)}
    services = [_service(decision, policy, started.get(decision.service)) for decision in decided]
    if args.dry_run:
        _print_dry_run(args, services)
        return
    explanation = _describe(view, tables.problem, registry, policy)
    holes = load_holes(open_table(base_path), now_ms, heartbeat_rule(policy.hudi_options))
    explanation = replace(explanation, holes=holes.explain() if holes.holes else ())
    explanation.services.extend(services)
    explanation.writers.extend(row_to_dict(found) for found in writers.rows)
    explanation.instances.extend(_instances(registry, views, base_path))
    if args.output == "text":
        _print_text(explanation)
    else:
        print_document(args, asdict(explanation), [{key: row[key] for key in TABLE_COLUMNS} for row in services])


def _describe(view: TableView, settings_problem: str, registry: Registry, policy: TablePolicy) -> Explanation:
    latest = view.timeline.latest_completed()
    shown = "nothing completed" if latest is None else f"last completed {latest.action} {latest.requested_time}"
    row = registry.find(table_id_of(view.base_path))
    return Explanation(
        table=view.properties.name,
        base_path=view.base_path,
        type=view.properties.table_type,
        version=view.properties.version,
        timeline=f"{len(view.timeline.instants)} instants, {len(view.timeline.pending())} pending, {shown}",
        damaged=problems_text(view.problems) if view.problems else "",
        settings_problem=settings_problem,
        net_problems=_net_problems(registry),
        evaluation_problem="" if row is None else row["problem"],
        next_evaluation="never: not in the registry"
        if row is None
        else moment(next_evaluation_ms(row, registry.now_ms())),
        lock_problem=find_lock_problem(policy.hudi_options) or "",
    )


def _net_problems(registry: Registry) -> tuple[str, ...]:
    with registry.transaction() as session:
        return find_net_problems(AirflowRunGateway().find_net(session), registry.now_ms())


def _service(decision: Decision, policy: TablePolicy, start: StartDecision | None) -> dict[str, Any]:
    section = getattr(policy, decision.service.value, None)
    body: dict[str, Any] = {
        "service": decision.service.value,
        "verdict": decision.verdict.value,
        "reason": decision.reason,
        "rules": section.model_dump() if isinstance(section, Settings) else {},
        "found": {key: value for key, value in decision.evidence.items() if value not in {None, ""}},
        "now": "",
        "run_id": "",
    }
    if start is not None:
        body |= {"now": start.verdict.value, "run_id": start.run_id, "run_reason": start.reason}
        body["mode"] = decision.mode.value
        body["plans"] = list(decision.plan_instants)
    return body


def _instances(registry: Registry, views: TableViewCache, base_path: str) -> list[dict[str, Any]]:
    table_id = table_id_of(base_path)
    if registry.find(table_id) is None:
        return []
    now_ms = registry.now_ms()
    return [
        {
            "service": instance.service,
            "state": instance.state.value,
            "owner": instance.owner,
            "run_id": instance.run_id,
            "until": moment(instance.deadline_ms),
            "overdue": instance.is_overdue(now_ms),
            "reason": instance.reason,
        }
        for instance in load_instances(registry, AirflowInstanceGateway(), views, table_id, most_ended=20)
        if instance.state not in _OVER
    ]


def _print_dry_run(args: Namespace, services: list[dict[str, Any]]) -> None:
    wanted = [row for row in services if row["now"] == "start"]
    if args.output != "text":
        print_document(args, wanted, [{key: row[key] for key in TABLE_COLUMNS} for row in wanted])
        return
    for row in wanted:
        plans = f" of {', '.join(row['plans'])}" if row["plans"] else ""
        print(f"would start {row['run_id']}: {row['mode']}{plans}: {row['run_reason']}")
    if not wanted:
        print("nothing would be started now")


def _print_text(explanation: Explanation) -> None:
    print(f"{explanation.table} at {explanation.base_path}: {explanation.type}, version {explanation.version}")
    print(f"{explanation.timeline}; next evaluation {explanation.next_evaluation}")
    for line in explanation.holes:
        print(line)
    problems = {
        "damaged or unknown files": explanation.damaged,
        "the last evaluation failed": explanation.evaluation_problem if not explanation.damaged else "",
        "in the way of every service": explanation.lock_problem,
        "writers do not conform (airflow lake check-writer)": _describe_writers(explanation.writers),
        "in the way of all tables": "; ".join(explanation.net_problems),
        "the tables' settings are wrong, these are the last good ones": explanation.settings_problem,
    }
    for what, problem in problems.items():
        if problem:
            print(f"{what}: {problem}")
    for row in explanation.services:
        reason = _brief(row["reason"], explanation)
        print(f"{row['service']:<14} {row['verdict'].replace('_', ' '):<8} {reason}")
        if row["now"]:
            why = f": {row['run_reason']}" if row["run_reason"] != row["reason"] else ""
            print(f"{'':<14} now      {row['now'].replace('_', ' ')}{_of(row['run_id'])}{why}")
        for label in ("rules", "found"):
            values = ", ".join(f"{key} {_brief(_shown(value), explanation)}" for key, value in row[label].items())
            if values:
                print(f"{'':<14} {label:<8} {values}")
    for row in explanation.instances:
        late = " (LATE)" if row["overdue"] else ""
        print(f"{row['service']:<14} {row['state']}{_of(row['run_id'])}, {row['owner']} until {row['until']}{late}:")
        print(f"{'':<14} {row['reason']}")


def _describe_writers(rows: list[dict[str, Any]]) -> str:
    broken = [row for row in rows if row["state"] == Conformity.BROKEN]
    return "; ".join(", set ".join((f"{row['requirement']}: {row['evidence']}", *row["settings"])) for row in broken)


def _of(run_id: str) -> str:
    return f" {run_id}" if run_id else ""


def _brief(text: str, explanation: Explanation) -> str:
    """Return a text without the problem that the head prints once for all services."""
    problem = explanation.lock_problem
    return text.replace(problem, "a lock provider is missing (see above)") if problem else text


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "off" if value is None else str(value)
