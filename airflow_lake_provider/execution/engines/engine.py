"""The interface of engines, and the values that pass through it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from airflow_lake_provider.errors import (
    ConfigError,
    EngineAwayError,
    EngineError,
    ServiceRefusedError,
    find_login_complaint,
)
from airflow_lake_provider.job_contract import FailureKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from airflow_lake_provider.job_contract import JobRequest
    from airflow_lake_provider.replication.job import ReplicationRequest


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One job, ready to start.

    `name` is for people; `tag` is unique to this job among all (lower-case letters, digits and `-`), so that an engine
    can find the job again by it alone. The driver finds its request at `request_path`. `host` starts the job. `conf`
    are the engine's settings; what an engine cannot use, it ignores. `queue` is Airflow's queue of the task,
    `lake_conn_id` the connection to the manager, `timeout_s` the try's time-out (0: none).

    A run of replication has its own request as `replication`, which the driver gets; `request` then names the job, and
    has no service.
    """

    engine: str
    name: str
    request: JobRequest
    request_path: str
    host: str
    conn_id: str = ""
    conf: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    jars: str = ""
    packages: str = ""
    queue: str = ""
    lake_conn_id: str = "lake_default"
    timeout_s: float = 0.0
    replication: ReplicationRequest | None = field(default=None, repr=False)

    @property
    def tag(self) -> str:
        """A name that is unique to this job."""
        return "lake-" + hashlib.sha256(self.request_path.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Handle:
    """A job that was started, or whose starter may have died in between.

    `external_id` is what the engine needs to follow the job from another process; empty when the job does not outlive
    the process that started it, or when its start was not recorded.
    """

    job: EngineJob
    external_id: str = ""


@dataclass(frozen=True, slots=True)
class Death:
    """Why a job ended badly, in the words of the cluster that ran it."""

    reason: str
    failure_kind: FailureKind = FailureKind.OTHER


@dataclass(frozen=True, slots=True)
class Login:
    """What a job logs in to Kerberos with, and the setting it comes from; empty where only Spark knows."""

    principal: str = ""
    keytab: str = ""
    setting: str = ""


def login_of(conf: Mapping[str, str], connection: Mapping[str, object], conn_id: str) -> Login:
    """Return the login of Spark's settings and connection; spark-submit prefers the connection's. Pure."""
    if connection.get("keytab"):
        setting = f"`principal` and `keytab` in the extra of connection {conn_id!r}"
        return Login(str(connection.get("principal") or ""), str(connection["keytab"]), setting)
    if conf.get(_KEYTAB):
        return Login(conf.get(_PRINCIPAL, ""), conf[_KEYTAB], f"{_PRINCIPAL} and {_KEYTAB} in spark_conf")
    return Login()


def find_failed_login(output: Iterable[str], login: Login) -> Death | None:
    """Return the death of a job whose last lines show that it got no Kerberos ticket; None when they do not. Pure.

    spark-submit logs in before it starts the driver, so that nothing but its output says what went wrong.
    """
    lines = tuple(output)
    found = find_login_complaint(lines)
    if found is None:
        return None
    complaint, line = found
    principal = login.principal or _find(r"for (?:principal|user): (\S+)", line)
    keytab = login.keytab or _find(r"(?:from keytab|Keytab file:) (\S+)", line)
    setting = login.setting or f"{_PRINCIPAL} and {_KEYTAB} in spark-defaults.conf"
    place = f"keytab {keytab} ({setting})" if keytab else "a ticket cache, because it has no keytab"
    reason = (
        f"Spark cannot log in to Kerberos{f' as {principal}' if principal else ''} with {place}: {complaint.text}; "
        f"{complaint.remedy}"
    )
    return Death(reason, FailureKind(complaint.failure_kind))


_EXCEPTION = re.compile(r"(?:^|[\s:\"])((?:[\w$]+\.)*[A-Z][\w$]*(?:Exception|Error)): (\S.*)")
MAX_REASON = 500
_NO_JVM = "Error: Could not create the Java Virtual Machine."
"""The line before it says why."""


def find_last_exception(output: Iterable[str], code: int) -> Death:
    """Return the death of a driver that left no result: its exit code, and the last exception in its output. Pure.

    Of an exception with causes that is the innermost, which both Java and Python print last. A driver that never began
    has none: then it is what Java, or spark-submit, complained of.
    """
    lines = tuple(line.rstrip() for line in output)
    ended = f"the driver was killed by signal {-code}" if code < 0 else f"the driver ended with code {code}"
    found = find_exception(lines) or _find_complaint(lines)
    why = f": {found}" if found else "; its output is in the log"
    return as_shortage(Death(f"{ended} and left no result{why}"[:MAX_REASON]), lines)


def as_shortage(death: Death, output: Iterable[str]) -> Death:
    """Return the death of a driver whose output shows a JVM without memory as such, and any other as it is. Pure.

    Such a JVM ends itself, and Python, which then finds none, prints the last exception.
    """
    is_unknown = death.failure_kind is FailureKind.OTHER
    if is_unknown and any(_OUT_OF_MEMORY in line for line in output):
        return replace(death, failure_kind=FailureKind.OUT_OF_MEMORY)
    return death


_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"


def find_exception(output: Iterable[str]) -> str:
    """Return the last exception that was printed, without its package; empty when none was. Pure."""
    found = [match for line in output if not line.startswith("\tat ") and (match := _EXCEPTION.search(line))]
    return f"{found[-1][1].rpartition('.')[2]}: {found[-1][2]}" if found else ""


def _find_complaint(lines: Sequence[str]) -> str:
    if _NO_JVM in lines[1:]:
        return lines[lines.index(_NO_JVM, 1) - 1]
    return next((line.removeprefix("Error: ") for line in reversed(lines) if line.startswith("Error: ")), "")


def error_of(death: Death, name: str) -> EngineError | ServiceRefusedError:
    """Return the error of a job that died without a result: one that a retry may help, or one that it does not."""
    message = f"{name}: {death.reason}"
    if death.failure_kind is FailureKind.REFUSED:
        return ServiceRefusedError(message)
    return (EngineAwayError if death.failure_kind is FailureKind.INFRASTRUCTURE else EngineError)(message)


def _find(pattern: str, line: str) -> str:
    found = re.search(pattern, line)
    return found[1] if found else ""


_PRINCIPAL = "spark.kerberos.principal"
_KEYTAB = "spark.kerberos.keytab"


class Engine(Protocol):
    """Runs jobs. One object serves one try of one task; handles may come from other tries, hosts and days."""

    def start(self, job: EngineJob) -> Handle:
        """Start the job and return soon. Raises EngineError; a job that failed to start must not start later."""

    def wait(self, handle: Handle) -> Death | None:
        """Return when the job has ended, well or not: the timeline judges. Raises EngineError when that is unknown.

        What is returned is used when the job has left no result.
        """

    def stop(self, handle: Handle) -> None:
        """End the job of any starter; called from any thread, and repeatedly. Returns only when it has ended.

        Raises EngineError when that is unknown: then no other job may begin (G2).
        """


# --- Finds engines by name: the provider's own, and those that other packages register by entry point

GROUP = "airflow_lake_provider.engines"
DEFAULT_ENGINE = "spark-submit"
_PACKAGE = "airflow_lake_provider.execution.engines"
BUILT_IN = (
    EntryPoint(DEFAULT_ENGINE, f"{_PACKAGE}.spark_submit:SparkSubmitEngine", GROUP),
    EntryPoint("warm", f"{_PACKAGE}.warm:WarmEngine", GROUP),
    EntryPoint("in-process", f"{_PACKAGE}.spark_submit:InProcessEngine", GROUP),
    EntryPoint("flink", f"{_PACKAGE}.flink:FlinkEngine", GROUP),
)


def create_engine(name: str, registered: Iterable[EntryPoint] | None = None) -> Engine:
    """Create the engine of a name, and import no other one.

    `registered` are the entry points of other packages, by default the installed ones. Raises ConfigError for a name
    that no package or two packages register, and when an engine cannot be imported.
    """
    others = entry_points(group=GROUP) if registered is None else registered
    known = [*BUILT_IN, *others]
    found = [entry for entry in known if entry.name == name]
    if not found:
        names = ", ".join(sorted({entry.name for entry in known}))
        raise ConfigError(f"engine {name!r} is not registered; registered are: {names}")
    if len({entry.value for entry in found}) > 1:
        values = ", ".join(sorted(entry.value for entry in found))
        raise ConfigError(f"engine {name!r} is registered more than once: {values}; remove all but one")
    try:
        engine: Engine = found[0].load()()
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"engine {name!r} ({found[0].value}) cannot be imported: {error}") from error
    return engine
