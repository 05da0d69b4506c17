"""One table's page: what each service was decided to be and why, instances, sinks, the newest instants."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.doctor.time_zones import find_zone_trouble
from airflow_lake_provider.errors import LakeError
from airflow_lake_provider.manager.moments import distance, moment
from airflow_lake_provider.manager.sink_state import problem_of, state_of
from airflow_lake_provider.manager.sinks import Sinks
from airflow_lake_provider.manager.table_instances import load_instances
from airflow_lake_provider.pages.table_lines import TableLine, to_line
from airflow_lake_provider.timeline.job_zone import zone_of_jobs

if TYPE_CHECKING:
    from sqlalchemy import RowMapping

    from airflow_lake_provider.manager.instances import Instance
    from airflow_lake_provider.manager.services import ManagerServices
    from airflow_lake_provider.view.table_view import TableView

MOST_ENDED = 20
MOST_INSTANTS = 25


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """One service as the last look decided it."""

    service: str
    verdict: str
    reason: str
    found: tuple[tuple[str, str], ...]
    run: str


@dataclass(frozen=True, slots=True)
class InstanceLine:
    """One instance of a service; `until` is its deadline."""

    service: str
    state: str
    owner: str
    since: str
    until: str
    is_overdue: bool
    tries: int
    reason: str
    run_id: str


@dataclass(frozen=True, slots=True)
class SinkLine:
    """One sink of replication."""

    sink: str
    state: str
    hold: str
    renewed: str
    problem: str


@dataclass(frozen=True, slots=True)
class InstantLine:
    """One instant of the timeline."""

    requested_time: str
    action: str
    state: str
    completed_time: str
    operation: str


@dataclass(frozen=True, slots=True)
class TablePage:
    """All that the page shows. `timeline_problem` says why there are no instants."""

    table: TableLine
    owner: str
    notices: int
    last_notice: str
    services: tuple[ServiceLine, ...]
    instances: tuple[InstanceLine, ...]
    sinks: tuple[SinkLine, ...]
    instants: tuple[InstantLine, ...]
    timeline_problem: str
    time_zones: tuple[tuple[str, str], ...] = ()
    """What is wrong with the time zones of instants, each with what to do."""


def load_page(services: ManagerServices, table_id: str) -> TablePage:
    """Read what the page shows. Raises TableUnknownError; a table that cannot be read has a page all the same."""
    registry = services.registry
    row, now_ms = registry.get(table_id), registry.now_ms()
    found = load_instances(registry, services.instance_door, services.views, table_id, MOST_ENDED)
    instants, time_zones, problem = _load_timeline(services, row, now_ms)
    return TablePage(
        table=to_line(row, now_ms),
        owner=row["owner"],
        notices=row["notices"],
        last_notice=distance(row["last_notice_ms"], now_ms),
        services=tuple(_service(decision) for decision in json.loads(row["decisions"])),
        instances=tuple(_instance(instance, now_ms) for instance in found),
        sinks=tuple(_sink(sink, now_ms) for sink in Sinks(registry).list_sinks(table_id)),
        instants=instants,
        timeline_problem=problem,
        time_zones=time_zones,
    )


def _service(decision: dict[str, Any]) -> ServiceLine:
    evidence = {key: value for key, value in decision.get("evidence", {}).items() if value not in {None, ""}}
    run = f"{decision['run']}: {decision['run_reason']}" if "run" in decision else ""
    return ServiceLine(
        decision["service"],
        decision["verdict"].replace("_", " "),
        decision["reason"],
        tuple((key, str(value)) for key, value in evidence.items()),
        run,
    )


def _instance(instance: Instance, now_ms: int) -> InstanceLine:
    return InstanceLine(
        service=instance.service,
        state=instance.state.value,
        owner=instance.owner,
        since=moment(instance.since_ms),
        until=moment(instance.deadline_ms),
        is_overdue=instance.is_overdue(now_ms),
        tries=instance.tries,
        reason=instance.reason,
        run_id=instance.run_id,
    )


def _sink(row: RowMapping, now_ms: int) -> SinkLine:
    checkpoint = json.loads(row["checkpoint"]) if row["checkpoint"] else {}
    return SinkLine(
        sink=row["sink"],
        state=state_of(row, checkpoint, now_ms),
        hold="" if row["needs_snapshot"] else row["hold"],
        renewed=distance(row["renewed_ms"], now_ms),
        problem=problem_of(row),
    )


def _load_timeline(
    services: ManagerServices, row: RowMapping, now_ms: int
) -> tuple[tuple[InstantLine, ...], tuple[tuple[str, str], ...], str]:
    try:
        view = services.views.refresh(row["base_path"])
        stamps = services.views.load_stamps(view)
    except LakeError as error:
        return (), (), str(error)
    policy, table_zone = (
        services.tables.load().policy_for(row["base_path"], row["table_name"]),
        view.properties.time_zone,
    )
    zone = zone_of_jobs(table_zone, policy.spark_conf)
    trouble = () if zone is None else find_zone_trouble(stamps, zone, table_zone, now_ms)
    return _instants(view), tuple((one.says, one.repair) for one in trouble), ""


def _instants(view: TableView) -> tuple[InstantLine, ...]:
    newest = sorted(view.timeline.instants, key=lambda instant: instant.sort_key, reverse=True)[:MOST_INSTANTS]
    lines = []
    for instant in newest:
        commit = view.commits.get(instant.requested_time)
        lines.append(
            InstantLine(
                instant.requested_time,
                instant.action.value,
                instant.state.value,
                instant.completed_time or "",
                "" if commit is None else commit.operation,
            )
        )
    return tuple(lines)
