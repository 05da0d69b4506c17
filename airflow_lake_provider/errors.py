"""One root for every error of this package.

The class itself says whether trying again can help (`retriable`) and how an HTTP route answers it
(`http_status`), so that no caller lists exception classes to decide.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar


class LakeError(Exception):
    """Something this package cannot do; the message is one sentence that names the value and what to do."""

    retriable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500
    failure_kind: str = "other"
    """What a failed try calls for, in the spelling of `job_contract.FailureKind`."""

    @property
    def facts(self) -> dict[str, Any]:
        """What an HTTP route answers beside the message, for programs."""
        return {}


class ConfigError(LakeError):
    """A setting is missing, unknown or would lose data; the message names file, line or option."""


# --- timeline ---------------------------------------------------------------------------------------------


class TableNotFoundError(LakeError):
    """There is no Hudi table at the base path (no `.hoodie/hoodie.properties`, nor its backup)."""

    http_status = 404


class StorageError(LakeError):
    """The store did not answer as expected; another look may succeed."""

    retriable = True
    http_status = 503


class StorageOptionError(StorageError):
    """The store cannot be opened: a library is missing, or an option is wrong. Trying again does not help."""

    retriable = False
    http_status = 500


class DamagedFileError(LakeError):
    """A file under `.hoodie` cannot be read as what its name says; the message names the file."""

    retriable = True  # writers write while we read: a second look may see the whole file


class UnsupportedTableError(LakeError):
    """The table's version or layout is not one this package reads (6, 8 and 9 are)."""


# --- timeline server --------------------------------------------------------------------------------------


class TimelineServerUnavailableError(LakeError):
    """The timeline server did not answer, or not as itself; readers ask the file system unless it is required."""

    retriable = True
    http_status = 503


# --- manager ----------------------------------------------------------------------------------------------


class UnauthorisedError(LakeError):
    """The request carries no token, or not one of the configured ones."""

    http_status = 401


class PathNotAllowedError(LakeError):
    """The base path lies outside the configured roots, or is written so that this cannot be told."""

    http_status = 403


class MalformedRequestError(LakeError):
    """The request cannot be understood; the message says what is wrong."""

    http_status = 422


class BodyTooLargeError(LakeError):
    """The request's body is larger than `[lake] max_notice_bytes`."""

    http_status = 413


class TableUnknownError(LakeError):
    """The registry holds no such table."""

    http_status = 404


@dataclass(frozen=True, slots=True)
class LeaseHolder:
    """Who holds a lease; `rest_s` until its end unless it is renewed."""

    run_id: str
    try_number: int
    rest_s: float = field(default=0.0, compare=False)


class ExecutorBusyError(LakeError):
    """Another executor holds this table's service; it must end, or its lease must run out, first."""

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
    """The caller no longer holds what it renews or releases; somebody else took over after the lease ran out."""

    retriable = True  # the next try asks for a lease of its own
    http_status = 409
    failure_kind = "busy"


class ManagerUnreachableError(LakeError):
    """The manager's HTTP app did not answer, or not as itself."""

    retriable = True
    http_status = 503


# --- services ---------------------------------------------------------------------------------------------


class LockNotConfiguredError(LakeError):
    """Hudi needs a lock between this service and the table's writers, and none is configured."""

    http_status = 409


class WriterUnguardedError(LakeError):
    """A writer is at work that takes no part in the locking; a service must not run beside it."""

    retriable = True
    http_status = 409
    failure_kind = "conflict"


class ServiceFailedError(LakeError):
    """The timeline does not show the service's instant completed after its job ended; a retry may succeed."""

    retriable = True

    def __init__(self, message: str, failure_kind: str = "other") -> None:
        super().__init__(message)
        self.failure_kind = failure_kind


class EngineError(LakeError):
    """The engine could not start, follow or end a job. Until it can tell that the job has ended, no other may begin."""

    retriable = True
    http_status = 503


class ServiceRefusedError(LakeError):
    """The service must not run as asked; a retry would be refused again."""

    http_status = 409


class RepairRefusedError(LakeError):
    """The doctor must not repair this: no policy allows it, it is no longer so, or it cannot be done safely."""

    http_status = 409


# --- replication ------------------------------------------------------------------------------------------


class SinkUnknownError(LakeError):
    """The table has no sink of this name."""

    http_status = 404


class SinkBusyError(LakeError):
    """Another run has this sink; it must end, or its lease must run out, first."""

    retriable = True
    http_status = 409
    failure_kind = "busy"


class SinkUnavailableError(LakeError):
    """The sink does not answer, or lacks its topic or table; the hold stays, and a later try may succeed."""

    retriable = True
    http_status = 503


class SinkRefusedError(LakeError):
    """The sink refuses what it is sent or who sends it; it will again until somebody changes that."""


class SinkFencedError(LakeError):
    """Another run has opened the same stream since; it goes on, this one ends without a trace."""

    retriable = True
    http_status = 409


class RecordRefusedError(LakeError):
    """One record cannot be written; the message names its key."""


class CheckpointDamagedError(LakeError):
    """What is held or sent as a sink's checkpoint cannot be read as one."""

    http_status = 422


class ReplicationGapError(LakeError):
    """Changes were cleaned, archived or undone before they were replicated; the next try begins with a snapshot."""

    retriable = True


class ReplicationFailedError(LakeError):
    """A replication run failed; the sink has what it had committed, and the next try goes on from there."""

    retriable = True


class ReplicationRefusedError(LakeError):
    """A replication run failed with what a retry cannot mend; runs go on with long pauses until somebody does."""


class SourceRefusedError(LakeError):
    """The table cannot be replicated as asked, because Hudi would lose or garble changes."""


class NotificationFailedError(LakeError):
    """A notifier's receiver did not take the message."""

    retriable = True
