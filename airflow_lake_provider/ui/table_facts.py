"""What the pages show of one table, from its row of the registry, its policy and its view. Pure.

The values are the wire types of `/lake/api` as well: one model is the answer, its schema and its documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict

from airflow_lake_provider.instant_clock import instant_time_ms
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.health.health import (
    ATTENTION,
    SEVERITY,
    FoundBy,
    Health,
    MarkKind,
    ProblemKey,
    TableState,
    parse_decisions,
    state_of_decision,
)
from airflow_lake_provider.shared.actions import Action

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import tzinfo

    from airflow_lake_provider.config.policies import TablePolicy
    from airflow_lake_provider.hudi.commit_metadata import CommitMetadata
    from airflow_lake_provider.hudi.instant import Instant
    from airflow_lake_provider.planner.table_view import TableView


class Wire(BaseModel):
    """A part of an answer. Its fields are documented where they stand."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, from_attributes=True)


# --- Services: the decision about each, and how near it is to its threshold


class LakeMeter(Wire):
    """How far a service is on its way to being due by one of its rules."""

    found: float
    threshold: float
    unit: str
    """What is counted, or `%`."""


class LakeService(Wire):
    """One service of a table by the last evaluation."""

    service: str
    is_active: bool
    """Whether the table's policy asks for it; a plan that another process left is executed all the same."""
    paused: str
    """By whom it is paused, and why; empty when it is not."""
    state: TableState
    verdict: str
    """`due`, `not_due` or `blocked`."""
    reason: str
    """The rules with what was found, in words."""
    run: str
    """What follows a due decision: `start`, `already_active`, `already_ran`, `waiting`, `backing_off`, `abandoned`."""
    run_reason: str
    run_id: str
    since_ms: int | None
    """Since when it has this verdict."""
    meters: list[LakeMeter]
    """One per rule that is on and counts something."""
    evidence: dict[str, str]
    """The numbers and instants that the decision rests on."""


def services_of_row(decisions_json: str, policy: TablePolicy, now_ms: int) -> list[LakeService]:
    """Return a table's services as its last evaluation decided them; the active ones first."""
    found = []
    for decision in parse_decisions(decisions_json):
        name = str(decision.get("service", ""))
        evidence = decision.get("evidence") or {}
        found.append(
            LakeService(
                service=name,
                is_active=_is_active(name, policy, evidence),
                paused=policy.find_pause(name, now_ms),
                state=state_of_decision(decision),
                verdict=str(decision.get("verdict", "")),
                reason=str(decision.get("reason", "")),
                run=str(decision.get("run", "")),
                run_reason=str(decision.get("run_reason", "")),
                run_id=str(decision.get("run_id", "")),
                since_ms=decision.get("since_ms"),
                meters=list(_meters(name, policy, evidence)),
                evidence={str(key): str(value) for key, value in evidence.items() if value not in {None, ""}},
            )
        )
    return sorted(found, key=lambda one: (-SEVERITY[one.state], not one.is_active))


def _is_active(service: str, policy: TablePolicy, evidence: Mapping[str, Any]) -> bool:
    if service == Service.TTL:
        return policy.ttl.is_on
    if service == Service.INDEXING:
        return policy.indexing.enabled and bool(policy.indexing.indexes)
    rules = getattr(policy, service, None)
    # Without evidence there is nothing to decide, such as compaction of a table that is copy-on-write.
    is_without = service in {Service.COMPACTION, Service.LOGCOMPACTION} and not evidence
    return rules is not None and getattr(rules, "enabled", None) is True and not is_without


_COUNTED: tuple[tuple[Service, str, str, str], ...] = (
    (Service.COMPACTION, "delta_commits", "delta_commits", "delta commits"),
    (Service.LOGCOMPACTION, "most_log_files", "log_files", "log files in a file group"),
    (Service.CLUSTERING, "writes_since_clustering", "commits", "writes"),
    (Service.CLUSTERING, "small_files", "small_files", "small files in a partition"),
    (Service.CLEAN, "writes_since_clean", "commits", "writes"),
    (Service.ARCHIVE, "active_writes", "max_commits", "writes on the active timeline"),
    (Service.METACOMPACTION, "active_writes", "commits", "writes"),
)
"""Service, name in the evidence, setting of its policy, and what is counted."""


def _meters(service: str, policy: TablePolicy, evidence: Mapping[str, Any]) -> Iterator[LakeMeter]:
    for of, name, setting, unit in _COUNTED:
        if of != service:
            continue
        found = evidence.get(name)
        threshold = getattr(getattr(policy, service), setting)
        if isinstance(found, int) and threshold:
            yield LakeMeter(found=found, threshold=threshold, unit=unit)
    ratio = policy.compaction.log_to_base_ratio
    log_bytes = evidence.get("log_bytes")
    base_bytes = evidence.get("base_bytes")
    if service == Service.COMPACTION and ratio and base_bytes and isinstance(log_bytes, int):
        yield LakeMeter(found=round(100 * log_bytes / base_bytes, 1), threshold=100 * ratio, unit="%")


# --- One sentence about a table

TITLES: Mapping[str, str] = {
    Service.COMPACTION: "Compaction",
    Service.LOGCOMPACTION: "Log compaction",
    Service.CLUSTERING: "Clustering",
    Service.CLEAN: "Cleaning",
    Service.ARCHIVE: "Archiving",
    Service.ROLLBACK: "Rollback",
    Service.TTL: "The search for expired partitions or rows",
    Service.METACOMPACTION: "Compaction of the metadata table",
    Service.INDEXING: "The index build",
    Service.SYNC: "Registration in the catalog",
    Service.INTEGRITY: "The check of files and keys",
}


class LakeProblem(Wire):
    """Something that a person has to act on."""

    state: TableState
    source: FoundBy
    """What found it."""
    subject: str
    """A service, a kind of the doctor's, a requirement, a sink; empty: the table."""
    cause: str
    remedy: str
    """What to do; empty where the cause says it."""
    help: str
    """Where the documentation explains it: an address, or a file."""
    since_ms: int
    snoozed_until_ms: int | None
    """Until then a person has silenced it: it counts for no state, and notifies no one."""


class LakeMark(Wire):
    """A wish that holds a table, or a service of it, back, or silences a problem of it."""

    kind: MarkKind
    service: str
    """The paused one, or what the silenced problem is about; empty: the table."""
    why: str
    since_ms: int
    """When the manager first saw it; of a hold, or a snooze, when it began."""
    ends_ms: int | None
    """When it ends by itself; null: when a person ends it."""


def headline(health: Health, services: Sequence[LakeService]) -> str:
    """Return one sentence: what is wrong, what is running, or what comes next."""
    if health.state in ATTENTION and health.heard:
        cause = health.heard[0].cause
        return f"{cause[:1].upper()}{cause[1:]}."
    if health.state is TableState.NEW:
        return "Not evaluated yet; the first evaluation follows within seconds."
    silenced = {one.key for one in health.problems if one.snoozed_until_ms is not None}
    heard = [one for one in services if ProblemKey(one.state, FoundBy.SERVICE, one.service) not in silenced]
    worst = max(heard, key=lambda one: SEVERITY[one.state], default=None)
    if worst is None or worst.state is TableState.HEALTHY:
        return _next(services)
    title = TITLES.get(worst.service, worst.service)
    if worst.state is TableState.RUNNING:
        return f"{title} runs: {worst.reason}."
    return f"{title} is due: {worst.run_reason or worst.reason}."


def _next(services: Sequence[LakeService]) -> str:
    nearest = max(
        (
            (meter.found / meter.threshold, one, meter)
            for one in services
            if one.is_active and not one.paused
            for meter in one.meters
            # What has reached its rule and is not due has nothing to do: it does not come next.
            if meter.found < meter.threshold
        ),
        key=lambda found: found[0],
        default=None,
    )
    if nearest is None:
        return "Healthy: nothing is due."
    _, service, meter = nearest
    counted = f"{meter.found:g}" if meter.unit == "%" else f"{meter.found:,.0f} of {meter.threshold:,.0f} {meter.unit}"
    if meter.unit == "%":
        counted = f"log files at {counted} % of their base files, of {meter.threshold:g} %"
    return f"Healthy: {TITLES.get(service.service, service.service).lower()} comes next, {counted}."


# --- The timeline, in lanes

MAX_INSTANTS = 3000
MAX_POINTS = 1000


class LakeInstant(Wire):
    """One instant of the active timeline. Bytes and files are those of its own metadata, 0 while it is pending."""

    requested_time: str
    requested_ms: int
    completed_ms: int | None
    action: str
    lane: str
    """`commits`, or the service that it belongs to."""
    state: str
    """`REQUESTED`, `INFLIGHT` or `COMPLETED`."""
    operation: str
    written_bytes: int
    base_files: int
    log_files: int
    replaced_file_groups: int
    is_hole: bool
    """Whether it is pending with completed writes after it."""


class LakeSize(Wire):
    """Files that readers merge after one write completed, of the file groups that the active timeline shows."""

    time_ms: int
    base_files: int
    base_bytes: int
    log_files: int
    log_bytes: int
    lane: str
    """Of the write."""


_LANES: Mapping[Action, str] = {
    Action.COMPACTION: Service.COMPACTION,
    Action.LOGCOMPACTION: Service.LOGCOMPACTION,
    Action.CLUSTERING: Service.CLUSTERING,
    Action.CLEAN: Service.CLEAN,
    Action.ROLLBACK: Service.ROLLBACK,
    Action.RESTORE: Service.ROLLBACK,
    Action.INDEXING: Service.INDEXING,
    Action.SAVEPOINT: "savepoint",
}
_LANES_OF_OPERATIONS: Mapping[str, str] = {
    "COMPACT": Service.COMPACTION,
    "LOG_COMPACT": Service.LOGCOMPACTION,
    "CLUSTER": Service.CLUSTERING,
}


def lane_of(instant: Instant, commit: CommitMetadata | None) -> str:
    """Return the lane of an instant: a service completes under a write's action, so its operation decides then."""
    if commit is not None:
        return str(_LANES_OF_OPERATIONS.get(commit.operation.upper(), "commits"))
    return str(_LANES.get(instant.action, "commits"))


def instants_of(view: TableView, zone: tzinfo) -> list[LakeInstant]:
    """Return the newest instants of the active timeline, in its order."""
    holes = {hole.requested_time for hole in view.timeline.holes()}
    found = []
    for instant in view.timeline.instants[-MAX_INSTANTS:]:
        commit = view.commits.get(instant.requested_time) if instant.is_completed else None
        requested_ms = instant_time_ms(instant.requested_time, zone)
        if requested_ms is None:
            continue
        completed = instant.completed_time
        stats = () if commit is None else commit.stats
        found.append(
            LakeInstant(
                requested_time=instant.requested_time,
                requested_ms=requested_ms,
                completed_ms=None if completed is None else instant_time_ms(completed, zone),
                action=instant.action.value,
                lane=lane_of(instant, commit),
                state=instant.state.value,
                operation="" if commit is None else commit.operation,
                written_bytes=0 if commit is None else commit.written_bytes,
                base_files=sum(not stat.is_log for stat in stats),
                log_files=sum(stat.is_log for stat in stats),
                replaced_file_groups=0 if commit is None else len(commit.replaced_file_groups),
                is_hole=not instant.is_completed and instant.requested_time in holes,
            )
        )
    return found


def sizes_of(view: TableView, zone: tzinfo) -> list[LakeSize]:
    """Return how files and bytes grew and shrank with each completed write, by completion."""
    base: dict[tuple[str, str], int] = {}
    logs: dict[tuple[str, str], dict[str, tuple[int, str]]] = {}
    base_bytes = log_bytes = log_files = 0
    replaced: set[tuple[str, str]] = set()
    points = []
    for instant in view.timeline.completed_writes:
        commit = view.commits.get(instant.requested_time)
        time_ms = instant_time_ms(instant.ordering_time, zone)
        if commit is None or time_ms is None:
            continue
        lane = lane_of(instant, commit)
        # A compaction merges what had completed when it was planned; a writer may have added log files meanwhile.
        until = instant.requested_time if lane == Service.COMPACTION else instant.ordering_time
        rewritten = {(stat.partition, stat.file_id) for stat in commit.stats if not stat.is_log}
        for group in (*commit.replaced_file_groups, *rewritten):
            of_group = logs.get(group, {})
            for path in [path for path, (_, completed) in of_group.items() if completed <= until]:
                log_bytes, log_files = log_bytes - of_group.pop(path)[0], log_files - 1
            base_bytes -= base.pop(group, 0)
        replaced.update(commit.replaced_file_groups)
        for stat in commit.stats:
            group = stat.partition, stat.file_id
            if group in replaced:
                # A compaction that was planned before wrote it, and no reader sees it.
                continue
            if stat.is_log:
                of_group = logs.setdefault(group, {})
                log_bytes += stat.file_size_bytes - of_group.get(stat.path, (0, ""))[0]
                log_files += stat.path not in of_group
                of_group[stat.path] = stat.file_size_bytes, instant.ordering_time
            else:
                base_bytes += stat.file_size_bytes - base.get(group, 0)
                base[group] = stat.file_size_bytes
        points.append(
            LakeSize(
                time_ms=time_ms,
                base_files=len(base),
                base_bytes=base_bytes,
                log_files=log_files,
                log_bytes=log_bytes,
                lane=lane,
            )
        )
    return points[-MAX_POINTS:]


# --- The policy in force, and where each value comes from


class LakeSetting(Wire):
    """One setting of a table's policy."""

    name: str
    """As in the tables file, with its section."""
    value: str
    """As JSON; `***` for what a name marks as a secret."""
    source: str
    """`built in`, or the defaults or the entry, of the tables file or of the Variable over it."""
    place: str
    """File and line, such as `/etc/lake.yaml:12`; empty for what is built in."""
