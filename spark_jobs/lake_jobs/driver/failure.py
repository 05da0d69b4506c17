"""Classifies a Java exception by the classes and messages of its chain of causes. Pure but for `causes_of`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import find_login_complaint
from airflow_lake_provider.job_contract import FailureKind
from airflow_lake_provider.shared.plain_text import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

# A chain of causes may bite its own tail.
MAX_CAUSES = 20


@dataclass(frozen=True, slots=True)
class Cause:
    """One exception of a chain: its class with package, and its message (empty when it has none)."""

    class_name: str
    message: str = ""
    place: str = ""
    """Class and method that threw it, of Hudi where one is on the stack; empty where the message says it all."""


@dataclass(frozen=True, slots=True)
class Sign:
    """A failure shows this sign when a cause names the class and its message holds the text."""

    kind: FailureKind
    class_name: str
    text: str = ""


LOCK_FILE_DENIED = "LockFileDenied"
"""No class of Java's: what the jobs find where Hudi says that a lock is held."""

# The first sign that any cause shows wins. A failed task arrives in the driver as a SparkException whose message quotes
# the task's exception, so the class name counts in a message as well.
SIGNS = (
    Sign(FailureKind.OUT_OF_MEMORY, "OutOfMemoryError"),
    # "exceeding physical memory limits", or virtual ones.
    Sign(FailureKind.OUT_OF_MEMORY, "SparkException", "memory limits"),
    Sign(FailureKind.OUT_OF_MEMORY, "SparkException", "exit code 137"),
    # Hudi says "lock" when the plan's executor still beats; the lock itself was free.
    Sign(FailureKind.BUSY, "HoodieLockException", "due to heartbeat by concurrent writer/job"),
    Sign(FailureKind.PLAN_GONE, "HoodieException", "is not present as pending or already completed"),
    Sign(FailureKind.CONFLICT, "HoodieWriteConflictException"),
    Sign(FailureKind.CONFLICT, "HoodieEarlyConflictDetectionException"),
    Sign(FailureKind.REFUSED, LOCK_FILE_DENIED),
    Sign(FailureKind.LOCK, "HoodieLockException"),
)


def classify(causes: Sequence[Cause]) -> FailureKind:
    """Return the kind of a failure, given its causes from the outermost to the root."""
    # First: whatever Hudi was doing, for example taking the lock, it could not without a ticket.
    login = find_login_complaint(map(as_text, causes))
    if login is not None:
        return FailureKind(login[0].failure_kind)
    for sign in SIGNS:
        if any(_shows(cause, sign) for cause in causes):
            return sign.kind
    return FailureKind.OTHER


# How Spark reports, while it starts, that YARN's ResourceManager or the standalone master does not answer. Of a master,
# Spark gives up in a thread of its own, so what is half started fails in one of several ways.
AWAY_SIGNS = (
    Sign(FailureKind.INFRASTRUCTURE, "ConnectException"),
    Sign(FailureKind.INFRASTRUCTURE, "ConnectTimeoutException"),
    Sign(FailureKind.INFRASTRUCTURE, "SocketTimeoutException"),
    Sign(FailureKind.INFRASTRUCTURE, "NoRouteToHostException"),
    Sign(FailureKind.INFRASTRUCTURE, "UnknownHostException"),
    Sign(FailureKind.INFRASTRUCTURE, "SparkException", "All masters are unresponsive"),
    Sign(FailureKind.INFRASTRUCTURE, "IllegalStateException", "stopped SparkContext"),
    Sign(FailureKind.INFRASTRUCTURE, "IllegalArgumentException", "on a running MetricsSystem"),
)


FULL_SIGN = Sign(FailureKind.INFRASTRUCTURE, "YarnException", "cannot accept submission of application")


# How file systems of Hadoop's say that a user may not write somewhere: HDFS by a class, the local one by a text; Azure
# and S3 by their answer's code. A folder's name may be that of a file, and a disk may be mounted to be read only.
_DENIED = (
    "AccessControlException",
    "AccessDeniedException",
    "ParentNotDirectoryException",
    "FileAlreadyExistsException",
    "(Permission denied)",
    "(Not a directory)",
    "Read-only file system",
    "Mkdirs failed to create",
)


def is_denied(causes: Sequence[Cause]) -> bool:
    """Whether a file could not be made for want of a right, or of a folder, which no retry brings."""
    return any(sign in as_text(cause) for cause in causes for sign in _DENIED)


def find_away(causes: Sequence[Cause]) -> str:
    """Return why Spark's cluster takes no application now; empty when that is not why Spark did not start."""
    if any(_shows(cause, FULL_SIGN) for cause in causes):
        return "YARN's queue is full"
    if any(_shows(cause, sign) for sign in AWAY_SIGNS for cause in causes):
        return "Spark's cluster does not answer"
    return ""


def describe(causes: Sequence[Cause], limit_chars: int = 1000) -> str:
    """Name outermost and root cause in one line, without stack traces; first what a login failed by."""
    login = find_login_complaint(map(as_text, causes))
    chosen = causes[:1] if len(causes) < 2 else (causes[0], *_with_message(causes[1:]))
    lines = [f"{cause.class_name.rsplit('.', 1)[-1]}{_first_line(cause)}" for cause in chosen]
    if login is not None:
        complaint, text = login
        said = text.partition("failure to login: ")[2].splitlines()[:1]
        lines.insert(0, f"no Kerberos ticket{f' {said[0]}' if said else ''}: {complaint.text}; {complaint.remedy}")
    text = plain(" <- ".join(dict.fromkeys(lines)), "\t")[:limit_chars]
    remedies = [remedy for has_sign, remedy in _REMEDIES if any(map(has_sign, causes))]
    return "; ".join((text, *remedies))


_MISSING_CLASS = ("ClassNotFoundException", "NoClassDefFoundError")


def _is_missing_class(cause: Cause) -> bool:
    # A failed task's exception is quoted in the message of Spark's.
    return any(cause.class_name.endswith(name) or f"{name}:" in cause.message for name in _MISSING_CLASS)


def _is_ancient(cause: Cause) -> bool:
    # Spark names the setting only some lines below the first one.
    return ".READ_ANCIENT_DATETIME]" in cause.message


GIVE_JAR = "give the jobs of this table the jar with that class (`spark_conf: {spark.jars: <path>}`)"

_REMEDIES = (
    (_is_missing_class, GIVE_JAR),
    (
        _is_ancient,
        "a date is before 1582, or a time before 1900: set `spark_conf: {spark.sql.parquet.datetimeRebaseModeInRead: "
        "CORRECTED}` for this table, or LEGACY where Spark 2 wrote its files",
    ),
)
"""What to do about a cause that shows a sign."""


_REFLECTION = "java.lang.reflect.InvocationTargetException"
"""Says how a method was called, and nothing of why it failed."""


def causes_of(java_exception: Any) -> tuple[Cause, ...]:
    """Walk a Java throwable (a py4j object) down to its root."""
    causes: list[Cause] = []
    while java_exception is not None and len(causes) < MAX_CAUSES:
        name = java_exception.getClass().getName()
        message = java_exception.getMessage() or ""
        place = "" if message.strip() else find_place([str(frame) for frame in java_exception.getStackTrace()])
        if name != _REFLECTION:
            causes.append(Cause(name, message, place))
        java_exception = java_exception.getCause()
    return tuple(causes)


HUDI_PACKAGE = "org.apache.hudi."


def find_place(frames: Sequence[str]) -> str:
    """Return class and method of Hudi's innermost frame, or of the innermost one; empty without frames.

    `frames` are as Java prints them: `org.apache.hudi.config.HoodieIndexConfig.create(HoodieIndexConfig.java:7)`.
    """
    innermost = next((frame for frame in frames if HUDI_PACKAGE in frame), frames[0] if frames else "")
    return ".".join(innermost.partition("(")[0].split(".")[-2:])


def _shows(cause: Cause, sign: Sign) -> bool:
    named = cause.class_name.rsplit(".", 1)[-1] == sign.class_name or f"{sign.class_name}:" in cause.message
    return named and sign.text in cause.message


def as_text(cause: Cause) -> str:
    """Return what a cause says, its class first."""
    return f"{cause.class_name}: {cause.message}"


def _with_message(causes: Sequence[Cause]) -> Sequence[Cause]:
    """Return the root cause, after the innermost one with a message where it has none: that names the file."""
    root = causes[-1]
    if root.message.strip():
        return (root,)
    named = [cause for cause in causes if cause.message.strip()]
    return (*named[-1:], root)


def _first_line(cause: Cause) -> str:
    lines = cause.message.strip().splitlines()
    if lines:
        return f": {lines[0]}"
    return f" in {cause.place}" if cause.place else ""
