"""What an Airflow task hands to the replication job, and what it gets back: JSON files, as for the table services."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import ConfigError, SourceRefusedError
from airflow_lake_provider.replication.change import Mode
from airflow_lake_provider.replication.pump import Order
from airflow_lake_provider.replication.sink import SinkSettings

if TYPE_CHECKING:
    from collections.abc import Mapping


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
    submitter: Mapping[str, Any] | None = None
    """As in `job_contract.Submitter`: the driver ends itself when this process is gone."""

    @property
    def sink_settings(self) -> SinkSettings:
        """What the sink is built from."""
        return SinkSettings(self.order.stream, self.table_name, self.mode, self.options)


@dataclass(frozen=True, slots=True)
class ReplicationResult:
    """How a run went; while it lasts the same file tells how far it is (`ended` is false then)."""

    stream: str
    ended: bool
    checkpoint: str = ""
    """The durable checkpoint's text; empty when there is none."""
    commits: int = 0
    rows: int = 0
    snapshot_reason: str = ""
    error: str = ""
    retriable: bool = True
    bytes: int = 0
    """Of the changes as JSON."""
    seconds: float = 0.0
    """Spent reading and writing, without the driver's start."""
    waits_for: str = ""
    """Why a snapshot that is due could not begin yet; the run is no failure then, and the sink does not have all."""


def request_to_text(request: ReplicationRequest) -> str:
    """Print a request; `request_from_text` is the inverse."""
    body = {entry.name: getattr(request, entry.name) for entry in fields(request)}
    return json.dumps(body | {"order": asdict(request.order), "options": dict(request.options)}, indent=2)


def request_from_text(text: str) -> ReplicationRequest:
    """Parse a request. Raises ConfigError."""
    try:
        body = json.loads(text)
        return ReplicationRequest(
            **body | {"order": Order(**body["order"]), "mode": Mode(body["mode"]), "key": tuple(body["key"])}
        )
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"not a replication request: {error}") from error


def result_to_text(result: ReplicationResult) -> str:
    """Print a result; `result_from_text` is the inverse."""
    return json.dumps(asdict(result), sort_keys=True)


def result_from_text(text: str) -> ReplicationResult:
    """Parse a result. Raises ConfigError."""
    try:
        return ReplicationResult(**json.loads(text))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"not a replication result: {error}") from error


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
            "rows beside pending compactions, and returns rows that are out of date or partial. Set mode: changes and "
            "another name for the sink; the table needs hoodie.table.cdc.enabled=true since it was made. Or take the "
            "sink out of the tables file: while it is there it holds the table's files until its time to live ends"
        )
