"""The request and the result of the replication job: files in the form of `job_contract`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from airflow_lake_provider.errors import SourceRefusedError
from airflow_lake_provider.job_contract import FailureKind, Submitter
from airflow_lake_provider.replication.change import Mode
from airflow_lake_provider.replication.pump import Order
from airflow_lake_provider.replication.sink import SinkSettings


@dataclass(frozen=True, slots=True)
class ReplicationRequest:
    """One run: which table, which sink, and what to do. `options` may hold secrets: the file is removed afterwards."""

    base_path: str
    table_name: str
    kind: str
    """The sink's name in the registry, for example `kafka`."""
    order: Order
    result_path: str
    mode: Mode = Mode.CHANGES
    key: tuple[str, ...] = ()
    """Fields of the record key; empty takes the table's own."""
    options: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    submitter: Submitter | None = None
    """The driver ends itself when this process has ended."""

    @property
    def sink_settings(self) -> SinkSettings:
        """The settings from which the sink is built."""
        return SinkSettings(self.order.stream, self.table_name, self.mode, self.options)


@dataclass(frozen=True, slots=True)
class ReplicationResult:
    """The result of a run; while it lasts the same file shows its progress (`ended` is false then)."""

    stream: str
    ended: bool
    checkpoint: str = ""
    """The durable checkpoint's text; empty when there is none."""
    commits: int = 0
    rows: int = 0
    snapshot_reason: str = ""
    failure_kind: FailureKind | None = None
    """What a failed run needs; None when it did not fail."""
    message: str = ""
    """Why it failed; empty when it did not."""
    bytes: int = 0
    """Of the changes as JSON."""
    seconds: float = 0.0
    """Spent reading and writing, without the driver's start."""
    waits_for: str = ""
    """Why a due snapshot could not begin yet; the run has not failed then, and the sink does not have all."""

    @property
    def has_failed(self) -> bool:
        """Whether the run ended with an error."""
        return self.failure_kind is not None


# --- Which modes a table's type allows; pure

MERGE_ON_READ = "MERGE_ON_READ"


def require_mode_fits(mode: Mode, table_type: str, base_path: str, sink: str) -> None:
    """Raise SourceRefusedError for mode `latest` on a merge-on-read table; `sink` names the sink or its stream.

    Hudi 1.2's incremental query of such a table reads a commit's own log files without the rest of their file slice. It
    returns none of the commit's rows where a compaction was planned before the commit completed; it returns rows that
    lost to one with a higher ordering value; and the blocks of a partial update lack all other columns (Hudi's issue
    18943 and pull request 19005).
    """
    if mode is Mode.LATEST and table_type == MERGE_ON_READ:
        raise SourceRefusedError(
            f"sink {sink} of table {base_path} has mode: latest, and the table is {MERGE_ON_READ}: Hudi 1.2 then loses "
            "rows during pending compactions, and returns rows that are out of date or partial. Set mode: changes and "
            "another name for the sink; the table needs hoodie.table.cdc.enabled=true since its creation. Or remove "
            "the sink from the tables file: while it is there it holds the table's files until its time to live ends"
        )
