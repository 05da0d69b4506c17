"""What an Airflow task hands to a Spark job, and what it gets back: two JSON files.

Standard library only: this one file travels to Spark by `--py-files` and is imported there as `job_contract`.

A `JobRequest` names one table and a list of services. The job writes one `JobResult` when it ends by itself;
an absent result means that the driver died. Neither is the truth about the table: the timeline is (G3).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar

CONTRACT_VERSION = 1

SAFEPOINT = "lake.safepoint"
"""Option of clean and archive: the requested time that they must leave to the readers of changes; `0` is all."""
MARGIN_COMMITS = 10
"""Room for the commits that complete between the question what is held and the plan of a clean."""

PLANNED_BEAT_MS = 1000
"""Time of the heartbeat that a job leaves for a plan that it made and did not begin, ms since the epoch.

It says whose plan it is, and nothing of an executor: a writer's own service may have begun it since.
"""
ENDED_BEAT_MS = 2000
"""The same for a plan whose execution failed: its executor has ended."""

LOCK_PROVIDER = "hoodie.write.lock.provider"
CONCURRENCY_MODE = "hoodie.write.concurrency.mode"
OPTIMISTIC = "optimistic_concurrency_control"
MULTI_WRITER_MODES = (OPTIMISTIC, "non_blocking_concurrency_control")
# They guard the threads of one JVM, or nothing. A writer is another process.
PROVIDERS_WITHOUT_REACH = ("InProcessLockProvider", "NoopLockProvider")

MEMORY_KEYS = ("spark.driver.memory", "spark.executor.memory")

_E = TypeVar("_E", bound=StrEnum)


def commits_to_keep(completed: Collection[str], safepoint: str) -> int:
    """Return how many of the newest writes a clean or an archive must keep for a safepoint (a requested time).

    Hudi knows no consumer's position: it retains so many commits. `completed` are the requested times of the completed
    writes on the active timeline, services' among them, because Hudi counts those as well.
    """
    # One more than is held: the version before it is what an update's row before is read from.
    return sum(1 for requested in completed if requested >= safepoint) + 1 + MARGIN_COMMITS


class ContractError(ValueError):
    """A request or result file is not one of this contract; the message names the field."""


class Service(StrEnum):
    """Table services, in the spelling of Hudi's timeline actions where they leave one.

    `archive` leaves no instant, `ttl` a `replacecommit`, `metacompaction` a `compaction` of the metadata table.
    """

    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    CLUSTERING = "clustering"
    CLEAN = "clean"
    ARCHIVE = "archive"
    ROLLBACK = "rollback"
    TTL = "ttl"
    METACOMPACTION = "metacompaction"
    INDEXING = "indexing"


class Mode(StrEnum):
    """Which half of a service runs."""

    SCHEDULE = "schedule"
    EXECUTE = "execute"
    SCHEDULE_AND_EXECUTE = "schedule_and_execute"
    WITHDRAW = "withdraw"
    """Take pending plans from the timeline without executing them; clustering only."""


class Outcome(StrEnum):
    """How one service of a job ended, as its driver saw it."""

    SCHEDULED = "scheduled"
    COMPLETED = "completed"
    NOTHING_TO_DO = "nothing_to_do"
    FAILED = "failed"


class FailureKind(StrEnum):
    """What a failure calls for. `OTHER` is retried with backoff."""

    LOCK = "lock"  # the table lock could not be taken: try later
    BUSY = "busy"  # another executor's heartbeat on the same plan lives: try later
    PLAN_GONE = "plan_gone"  # the named plan is not pending any more: look again and decide anew
    CONFLICT = "conflict"  # a writer's commit stands in the way: wait for the writer
    OUT_OF_MEMORY = "out_of_memory"
    REFUSED = "refused"  # this table cannot have this service as things are: somebody must change what is named
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Submitter:
    """The process that started the job; when it is gone, the driver ends itself, so that a retry is alone.

    `start_ticks` is field 22 of `/proc/<pid>/stat` and tells a re-used process id apart.
    """

    host: str
    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True)
class ServiceRequest:
    """One service to run.

    `instants` are requested times of pending plans to execute; empty means: every plan that is pending, and for
    `SCHEDULE_AND_EXECUTE` a new plan only when none is pending. `options` are Hudi settings of this service alone.
    """

    service: Service
    mode: Mode
    instants: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What one Spark job shall do to one table. `hudi_options` hold for all services (lock provider, ...)."""

    job_id: str
    base_path: str
    table_name: str
    services: tuple[ServiceRequest, ...]
    result_path: str
    hudi_options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    submitter: Submitter | None = None


@dataclass(frozen=True, slots=True)
class ServiceResult:
    """How one service went. Times are ISO 8601 with zone; sizes are of the completed instants' own metadata."""

    service: Service
    outcome: Outcome
    scheduled_instants: tuple[str, ...] = ()
    completed_instants: tuple[str, ...] = ()
    failure_kind: FailureKind | None = None
    message: str = ""
    started_at: str = ""
    ended_at: str = ""


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job that ended by itself says of its services, in the order of the request."""

    job_id: str
    services: tuple[ServiceResult, ...]
    spark_application_id: str = ""
    memory: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Spark's settings of memory that were in force, wherever they came from; those that nobody made are missing."""


def request_to_json(request: JobRequest) -> str:
    """Print a request; `request_from_json` is the inverse."""
    return _to_json(request)


def result_to_json(result: JobResult) -> str:
    """Print a result; `result_from_json` is the inverse."""
    return _to_json(result)


def request_from_json(text: str) -> JobRequest:
    """Parse a request file. Raises ContractError."""
    body = _load(text)
    submitter = _get(body, "submitter", (dict, type(None)))
    return JobRequest(
        job_id=_get(body, "job_id", str),
        base_path=_get(body, "base_path", str),
        table_name=_get(body, "table_name", str),
        services=tuple(_parse_service_request(entry) for entry in _get(body, "services", list)),
        result_path=_get(body, "result_path", str),
        hudi_options=_parse_options(body, "hudi_options"),
        submitter=None if submitter is None else _parse_submitter(submitter),
    )


def result_from_json(text: str) -> JobResult:
    """Parse a result file. Raises ContractError."""
    body = _load(text)
    return JobResult(
        job_id=_get(body, "job_id", str),
        services=tuple(_parse_service_result(entry) for entry in _get(body, "services", list)),
        spark_application_id=_get(body, "spark_application_id", str),
        memory=_parse_options(body, "memory"),
    )


def find_lock_problem(hudi_options: Mapping[str, str]) -> str | None:
    """Say in one sentence why these options do not guard a service against writers; None when they do."""
    provider = hudi_options.get(LOCK_PROVIDER, "").strip()
    if not provider:
        return (
            f"no {LOCK_PROVIDER} is configured; a service in a second process needs the lock provider that the "
            f"table's writers use: set it in hudi_options of the tables file (and in the writers, with "
            f"{CONCURRENCY_MODE}={OPTIMISTIC})"
        )
    if provider.rsplit(".", 1)[-1] in PROVIDERS_WITHOUT_REACH:
        return (
            f"{LOCK_PROVIDER}={provider} does not reach beyond one process; use one that all writers share, "
            "for example FileSystemBasedLockProvider or ZookeeperBasedLockProvider"
        )
    mode = hudi_options.get(CONCURRENCY_MODE, OPTIMISTIC).strip().lower()
    if mode not in MULTI_WRITER_MODES:
        return f"{CONCURRENCY_MODE}={mode} takes no lock; use {OPTIMISTIC}"
    return None


def _parse_service_request(entry: Any) -> ServiceRequest:
    return ServiceRequest(
        service=_enum(Service, entry, "service"),
        mode=_enum(Mode, entry, "mode"),
        instants=_strings(entry, "instants"),
        options=_parse_options(entry, "options"),
    )


def _parse_service_result(entry: Any) -> ServiceResult:
    kind = _get(entry, "failure_kind", (str, type(None)))
    return ServiceResult(
        service=_enum(Service, entry, "service"),
        outcome=_enum(Outcome, entry, "outcome"),
        scheduled_instants=_strings(entry, "scheduled_instants"),
        completed_instants=_strings(entry, "completed_instants"),
        failure_kind=None if kind is None else _enum(FailureKind, entry, "failure_kind"),
        message=_get(entry, "message", str),
        started_at=_get(entry, "started_at", str),
        ended_at=_get(entry, "ended_at", str),
    )


def _parse_submitter(entry: Any) -> Submitter:
    return Submitter(
        host=_get(entry, "host", str),
        pid=_get(entry, "pid", int),
        start_ticks=_get(entry, "start_ticks", int),
    )


def _to_json(value: JobRequest | JobResult) -> str:
    body = _plain(value) | {"contract_version": CONTRACT_VERSION}
    return json.dumps(body, indent=2, sort_keys=True, default=_plain)


def _plain(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    return {entry.name: getattr(value, entry.name) for entry in fields(value)}


def _load(text: str) -> dict[str, Any]:
    try:
        body = json.loads(text)
    except ValueError as error:
        raise ContractError(f"not JSON: {error}") from error
    version = _get(body, "contract_version", int)
    if version != CONTRACT_VERSION:
        raise ContractError(f"contract_version is {version}, this code speaks {CONTRACT_VERSION}")
    return dict(body)


def _get(body: Any, key: str, kind: type | tuple[type, ...]) -> Any:
    if not isinstance(body, Mapping) or key not in body:
        raise ContractError(f"field {key!r} is missing")
    if not isinstance(body[key], kind):
        raise ContractError(f"field {key!r} is {body[key]!r}, expected {kind}")
    return body[key]


def _enum(kind: type[_E], body: Any, key: str) -> _E:
    value = _get(body, key, str)
    try:
        return kind(value)
    except ValueError as error:
        allowed = ", ".join(kind)
        raise ContractError(f"field {key!r} is {value!r}, allowed: {allowed}") from error


def _strings(body: Any, key: str) -> tuple[str, ...]:
    values = _get(body, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ContractError(f"field {key!r} holds something other than strings")
    return tuple(values)


def _parse_options(body: Any, key: str) -> Mapping[str, str]:
    options = _get(body, key, dict)
    if not all(isinstance(value, str) for value in options.values()):
        raise ContractError(f"field {key!r} holds a value that is not a string")
    return dict(options)
