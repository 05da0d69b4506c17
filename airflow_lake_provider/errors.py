"""One root for every error of this package, what a failed login calls for, and how long to wait after failures.

The class itself shows whether a retry can help (`retriable`) and how an HTTP route answers it
(`http_status`), so that no caller lists exception classes to decide.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable


class LakeError(Exception):
    """A failure of this package; the message says what to do."""

    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    failure_kind: str = "other"
    """What a failed try needs, in the spelling of `job_contract.FailureKind`."""

    @property
    def facts(self) -> dict[str, Any]:
        """Return what an HTTP route answers besides the message, for programs."""
        return {}

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers of an HTTP route's answer."""
        return {}


class ConfigError(LakeError):
    """A setting is missing, unknown or would lose data."""


class TablesConfigError(ConfigError):
    """The tables file, or the Variable over it, is wrong, and no valid one was read before."""

    retriable = True
    http_status = 503


# --- timeline ---------------------------------------------------------------------------------------------


class TableNotFoundError(LakeError):
    """The base path has no Hudi table (no `.hoodie/hoodie.properties`, nor its backup)."""

    http_status = 404


class StorageError(LakeError):
    """The store did not answer as expected."""

    retriable = True
    http_status = 503
    failure_kind = "infrastructure"


class StorageOptionError(StorageError):
    """The store cannot be opened: a library is missing, or an option is wrong."""

    retriable = False
    http_status = 500


class DamagedFileError(LakeError):
    """A file under `.hoodie` cannot be read in the form that its name requires."""

    retriable = True  # writers write during the read: a second read may return the complete file


class HalfMovedError(DamagedFileError):
    """A change of the table's version has moved a part of its timeline."""


class UnsupportedTableError(LakeError):
    """The table's version is not 6, 8 or 9, or its layout is unknown."""


class WriteConflictError(LakeError):
    """A guarded write could no longer win, or waits for partitions that others hold."""

    retriable = True
    failure_kind = "conflict"


# --- timeline server --------------------------------------------------------------------------------------


class TimelineServerUnavailableError(LakeError):
    """The timeline server did not answer, or not as itself."""

    retriable = True
    http_status = 503
    failure_kind = "infrastructure"


class TablesRefusedError(LakeError):
    """The timeline server does not serve a named table: its path is not allowed, or is none."""


# --- manager ----------------------------------------------------------------------------------------------


class UnauthorisedError(LakeError):
    """The request has no token, or an unknown one."""

    http_status = 401


class ForbiddenError(LakeError):
    """The token lacks the right, or does not cover all tables concerned."""

    http_status = 403


class PathNotAllowedError(LakeError):
    """The base path lies outside the allowed roots, or its spelling hides whether it does."""

    http_status = 403


class MalformedRequestError(LakeError):
    """The request cannot be parsed."""

    http_status = 422


class BodyTooLargeError(LakeError):
    """The body is too large; of a notice, above `[lake] max_notice_bytes`."""

    http_status = 413


class BodyTooSlowError(LakeError):
    """The body did not arrive in time."""

    retriable = True
    http_status = 408


class TooManyBodiesError(LakeError):
    """Too many requests with a body are on their way."""

    retriable = True
    http_status = 429

    @property
    def headers(self) -> dict[str, str]:
        """Ask the sender to wait."""
        return {"Retry-After": "5"}


class TooManyPollsError(LakeError):
    """Too many long polls, or tables in them, or a token reads too often."""

    retriable = True
    http_status = 429

    @property
    def headers(self) -> dict[str, str]:
        """Ask the caller to wait."""
        return {"Retry-After": "5"}


class TooManyNoticesError(LakeError):
    """More notices than `[lake] notices_per_s` allows; nothing was recorded."""

    retriable = True
    http_status = 429

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Return when to repeat the request."""
        return {"Retry-After": str(self.retry_after_s)}


class PagesBusyError(LakeError):
    """This API server already reads as many pages of tables as it can."""

    retriable = True
    http_status = 503

    @property
    def headers(self) -> dict[str, str]:
        """Return when to repeat the request."""
        return {"Retry-After": "5"}


class TableUnknownError(LakeError):
    """The registry has no such table."""

    http_status = 404


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """The holder of a lease; `rest_s` until its end unless it is renewed."""

    run_id: str
    try_number: int
    rest_s: float = field(default=0.0, compare=False)


class ExecutorBusyError(LakeError):
    """Another executor has this table's service, until it or its lease ends."""

    retriable = True
    http_status = 409
    failure_kind = "busy"

    def __init__(self, message: str, holder: LeaseHolder | None = None) -> None:
        super().__init__(message)
        self.holder = holder

    @property
    def facts(self) -> dict[str, Any]:
        """What programs need of the message."""
        return {} if self.holder is None else {"holder": asdict(self.holder)}


class LeaseLostError(LakeError):
    """The caller's lease has expired, and another holder took over."""

    retriable = True  # the next try acquires a lease of its own
    http_status = 409
    failure_kind = "busy"


class ManagerUnreachableError(LakeError):
    """The manager did not answer, or not as itself."""

    retriable = True
    http_status = 503
    failure_kind = "infrastructure"


# --- services ---------------------------------------------------------------------------------------------


class LockNotConfiguredError(LakeError):
    """This service and the table's writers need a lock, and none is configured."""

    http_status = 409


class WriterUnguardedError(LakeError):
    """A writer without locking is running."""

    retriable = True
    http_status = 409
    failure_kind = "conflict"


class ServiceFailedError(LakeError):
    """After its job the service's instant is not completed on the timeline."""

    retriable = True

    def __init__(self, message: str, failure_kind: str = "other") -> None:
        super().__init__(message)
        self.failure_kind = failure_kind


class WorkDirError(LakeError):
    """A job's files cannot be written or read: disk full or read-only, or folder not mounted."""

    retriable = True
    failure_kind = "infrastructure"


class EngineError(LakeError):
    """The engine could not start, follow or end a job. No other begins until that job has ended."""

    retriable = True
    http_status = 503


class EngineAwayError(EngineError):
    """The engine's API does not answer, or its cluster is away; the job may be running.

    A job that was submitted may be running meanwhile; it is left to run, and the next try that asks follows it.
    """

    failure_kind = "infrastructure"


class ServiceRefusedError(LakeError):
    """The service must not run as requested."""

    http_status = 409


class RepairRefusedError(LakeError):
    """The doctor must not repair this: not allowed, not safe, or the problem is gone."""

    http_status = 409


# --- holds of readers -------------------------------------------------------------------------------------


class HoldRefusedError(LakeError):
    """A reader's hold is not possible: too long, or files cleaned already."""

    http_status = 409


class HoldLostError(LakeError):
    """A reader's hold has ended: released, not renewed in time, or too large."""

    retriable = True  # the next try holds again
    http_status = 409


# --- replication ------------------------------------------------------------------------------------------


class SinkUnknownError(LakeError):
    """The table has no sink of this name."""

    http_status = 404


class SinkBusyError(LakeError):
    """Another run has this sink, until it or its lease ends."""

    retriable = True
    http_status = 409
    failure_kind = "busy"


class SinkUnavailableError(LakeError):
    """The sink does not answer, or lacks its topic or table; the hold stays."""

    retriable = True
    http_status = 503


class SinkRefusedError(LakeError):
    """The sink refuses the content or its sender, until that changes."""


class SinkFencedError(LakeError):
    """Another run has opened the same stream since, and continues it."""

    retriable = True
    http_status = 409


class StreamOvertakenError(SinkFencedError):
    """Another run sends what a task of this run was to send."""


class RecordRefusedError(LakeError):
    """One record cannot be written."""


class CheckpointDamagedError(LakeError):
    """A sink's checkpoint cannot be parsed."""

    http_status = 422


class ReplicationGapError(LakeError):
    """Changes were cleaned, archived or undone before replication; the next try takes a snapshot."""

    retriable = True


class SeekRefusedError(LakeError):
    """The stream cannot seek now without losing rows in the sink."""

    http_status = 409


class ReadIncompleteError(LakeError):
    """The changes read of a commit are not those its write statistics count; the checkpoint has not moved."""

    retriable = True


class ReplicationFailedError(LakeError):
    """A replication run failed; the next try continues from what the sink has committed."""

    retriable = True


class ReplicationRefusedError(LakeError):
    """Replication fails until its cause is fixed; runs continue with long pauses."""


class SourceRefusedError(LakeError):
    """The table cannot be replicated as requested: Hudi would lose or garble changes."""


class NotificationFailedError(LakeError):
    """The receiver of a notifier did not accept the message."""

    retriable = True


# --- Why a job has no Kerberos ticket: what Hadoop and the JDK say, in spark-submit's output and in the driver, and
# what MIT's library says next to the task


@dataclass(frozen=True, slots=True)
class LoginComplaint:
    """A text that shows why a login failed, what to do about it, and what the failure calls for."""

    text: str
    remedy: str
    failure_kind: str
    """As `LakeError.failure_kind`."""


_REFUSED = "refused"
_INFRASTRUCTURE = "infrastructure"
_OTHER = "other"
_NEW_KEYS = "the principal's keys have changed since: put its new keytab there"
_NO_KEY = "the keytab cannot be read, or holds no key of the principal: correct one of them"
_NO_KDC = "the KDC does not answer"
_NO_TICKET = "there is no valid ticket: set `principal` and `keytab` in the Spark connection, or renew the ticket cache"

LOGIN_COMPLAINTS = (
    LoginComplaint("Keytab file", "this machine has no such file: correct the keytab's path", _REFUSED),
    LoginComplaint("Unable to obtain password from user", _NO_KEY, _REFUSED),
    LoginComplaint("Client not found", "the realm has no such principal: correct it", _REFUSED),
    LoginComplaint("credentials have been revoked", "the realm has locked the principal", _REFUSED),
    LoginComplaint("Checksum failed", _NEW_KEYS, _REFUSED),
    LoginComplaint("Pre-authentication information was invalid", _NEW_KEYS, _REFUSED),
    LoginComplaint("Integrity check on decrypted field failed", _NEW_KEYS, _REFUSED),
    LoginComplaint("Decrypt integrity check failed", _NEW_KEYS, _REFUSED),
    LoginComplaint("Preauthentication failed", _NEW_KEYS, _REFUSED),
    LoginComplaint("Server HTTP/", "the realm has no such service: ask YARN by its host's name", _REFUSED),
    LoginComplaint("No credentials cache found", _NO_KEY, _REFUSED),
    LoginComplaint("Clock skew too great", "the clocks of KDC and machine differ", _INFRASTRUCTURE),
    LoginComplaint("Connection refused", _NO_KDC, _INFRASTRUCTURE),
    LoginComplaint("timed out", _NO_KDC, _INFRASTRUCTURE),
    LoginComplaint("ICMP Port Unreachable", _NO_KDC, _INFRASTRUCTURE),
    LoginComplaint("Cannot contact any KDC", _NO_KDC, _INFRASTRUCTURE),
    LoginComplaint("Ticket expired", _NO_TICKET, _INFRASTRUCTURE),
    LoginComplaint("Failed to find any Kerberos tgt", _NO_TICKET, _INFRASTRUCTURE),
    LoginComplaint("Client cannot authenticate via", _NO_TICKET, _INFRASTRUCTURE),
    LoginComplaint("No Kerberos credentials available", _NO_TICKET, _INFRASTRUCTURE),
    LoginComplaint("failure to login", "check principal, keytab and krb5.conf", _OTHER),
)
"""The first one that occurs counts. What may end without a change of the settings is a matter of the infrastructure."""
_LOGIN_SIGNS = (
    *("failure to login", "LoginException", "KrbException", "GSSException", "Client cannot authenticate via"),
    "GSSAPI: ",
)


def find_login_complaint(texts: Iterable[str]) -> tuple[LoginComplaint, str] | None:
    """Return why a login failed, and the text that shows it; None when no text is about a login."""
    about = [text for text in texts if "Keytab file: " in text or any(sign in text for sign in _LOGIN_SIGNS)]
    shown = ((complaint, text) for complaint in LOGIN_COMPLAINTS for text in about if complaint.text in text)
    return next(shown, None)


# --- How long to wait: the one formula of the manager, the planner, the timeline server and tasks

_MAX_DOUBLINGS = 60
"""Beyond any limit in use; a table may fail for weeks, and a float ends at 2 to the power of 1024."""


def backoff(first: float, failures: int, most: float = math.inf) -> float:
    """Return the pause after `failures` failures in a row, in the unit of `first`.

    It is `first` after the first failure, doubles with each further one, and never exceeds `most`.
    """
    return min(first * 2.0 ** min(max(failures - 1, 0), _MAX_DOUBLINGS), most)
