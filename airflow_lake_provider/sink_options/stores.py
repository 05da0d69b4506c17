"""The options of the sinks `file`, `database` and `hudi`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.shared.hudi_settings import (
    BASE_PATH,
    COMMIT_METADATA_PREFIX,
    CONCURRENCY_MODE,
    FAILED_WRITES_POLICY,
    FAILED_WRITES_POLICY_BEFORE,
    LOCK_PROVIDER,
    RECORD_MERGE_MODE,
    WRITE_OPERATION,
    WRITE_PARTITION_FIELDS,
    WRITE_PAYLOAD_CLASS,
    WRITE_RECORD_KEY,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_lake_provider.sink_options.options import OnRecordError, TakenOptions


FILE_FORMATS = ("json", "parquet")


@dataclass(frozen=True, slots=True)
class FileOptions:
    """The options of a `file` entry. `storage.<option>` goes to fsspec."""

    path: str
    format: str
    on_record_error: OnRecordError
    storage: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def take_file(options: TakenOptions) -> FileOptions:
    """Take the options. Raises OptionError."""
    storage = {name: _take_storage(options, name, text) for name, text in options.below("storage.").items()}
    return FileOptions(
        options.required("path"), options.choice("format", "json", FILE_FORMATS), options.on_record_error(), storage
    )


def _take_storage(options: TakenOptions, name: str, text: str) -> Any:
    """Return an option of fsspec's, which takes a text for true, whatever it says; an object is written as JSON."""
    if text.lower() in {"true", "false"}:
        return options.parse_flag(name, text)
    if not text.startswith("{"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        options.wrong(f"storage.{name}", text, "a text, a flag, or a JSON object")


class Evolve(StrEnum):
    """The values of `evolve`: what the sink may change of a table whose rows get another schema."""

    STRICT = "strict"
    """Nothing."""
    ADD = "add"
    """It adds columns."""
    WIDEN = "widen"
    """It also gives columns wider types."""


@dataclass(frozen=True, slots=True)
class DatabaseOptions:
    """The options of a `database` entry."""

    url: str
    table: str
    columns: tuple[str, ...]
    """Those that the sink writes; empty: all that rows have."""
    on_record_error: OnRecordError
    timeout_s: float
    """How long it waits for a connection, for an answer on the wire, and for a lock that another session has."""
    statement_timeout_s: float
    create: bool
    """Whether it makes the table where there is none."""
    evolve: Evolve


def take_database(options: TakenOptions) -> DatabaseOptions:
    """Take the options. Raises OptionError."""
    options.choice("format", "json", ("json",))
    return DatabaseOptions(
        options.required("url"),
        options.required("table"),
        options.names("columns") or (),
        options.on_record_error(),
        options.seconds("timeout_s", 60.0),
        options.seconds("statement_timeout_s", 3600.0),
        options.flag("create"),
        Evolve(options.choice("evolve", Evolve.ADD, Evolve)),
    )


_HUDI = "hoodie."
HUDI_FIXED: Mapping[str, str] = MappingProxyType(
    {
        # Streams are in order, so what comes later is newer, whatever a row's own time says.
        RECORD_MERGE_MODE: "COMMIT_TIME_ORDERING",
        CONCURRENCY_MODE: "optimistic_concurrency_control",
        FAILED_WRITES_POLICY: "LAZY",
        "hoodie.allow.empty.commit": "true",
        "hoodie.populate.meta.fields": "true",
        # This path of Hudi's commits without the lock and without the comparison.
        "hoodie.datasource.write.row.writer.enable": "false",
        COMMIT_METADATA_PREFIX: "lake.",
    }
)
"""What the sink sets of its writer, whatever the entry says."""
_OWN = frozenset(
    {
        *HUDI_FIXED,
        # Hudi would write there, and not to the `path` that was compared with the roots.
        BASE_PATH,
        FAILED_WRITES_POLICY_BEFORE,
        WRITE_OPERATION,
        WRITE_RECORD_KEY,
        WRITE_PARTITION_FIELDS,
        "hoodie.datasource.write.precombine.field",
        WRITE_PAYLOAD_CLASS,
        "hoodie.table.ordering.fields",
        "hoodie.datasource.write.drop.partition.columns",
    }
)
_IN_PROCESS = "InProcessLockProvider"


def may_lock_by_file(path: str) -> bool:
    """Whether Hudi's lock of a file works in the store of a path: it must create a file that is not there in one step.

    Source: Hudi 1.2 `StorageSchemes.isAtomicCreationSupported`, of the stores that the provider knows.
    """
    scheme, found, _ = path.partition("://")
    return not found or scheme in {"file", "hdfs", "viewfs"}


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options of a `hudi` entry: `path`, `partition_by`, and what of Hudi's (`hoodie.*`) its writer takes."""

    path: str
    partition_by: tuple[str, ...] | None
    """Fields by which the target is partitioned; none at all, or, if the entry does not say, the followed table's."""
    hudi: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def take_hudi(options: TakenOptions) -> TargetOptions:
    """Take the options. Raises OptionError, also for those that exactly-once depends on."""
    options.choice("format", "json", ("json",))
    path = options.required("path").rstrip("/")
    partition_by = options.names("partition_by")
    hudi = {f"{_HUDI}{name}": text for name, text in options.below(_HUDI).items()}
    fixed = sorted(_OWN & hudi.keys())
    if fixed:
        options.refuse(f"sets {fixed[0]} itself: {fixed[0]} must not be set", fixed[0])
    if hudi.get(LOCK_PROVIDER, "").endswith(_IN_PROCESS):
        options.refuse(
            f"has {_IN_PROCESS}, which does not shut out another run: name a lock that other processes see",
            LOCK_PROVIDER,
        )
    if LOCK_PROVIDER not in hudi and options.knows(LOCK_PROVIDER) and not may_lock_by_file(path):
        options.refuse(
            f"on {path.partition('://')[0]}:// needs {LOCK_PROVIDER}, for example "
            "org.apache.hudi.client.transaction.lock.StorageBasedLockProvider: files of that store are no lock",
            "path",
        )
    return TargetOptions(path, partition_by, MappingProxyType(hudi))
