"""What the doctor did to a table, kept with the table: `.hoodie/.aux/lake_doctor/<id>.<begun|ended>.json`.

Hudi keeps auxiliary files in `.aux` and lists it nowhere. A repair is written down before anything is touched, and
again when it ended: one that only begun stands for a doctor that died. Files that were moved away lie in the folder
`<id>` beside it, as they were.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_lake_provider.errors import DamagedFileError

if TYPE_CHECKING:
    from airflow_lake_provider.timeline.storage import Storage

RECORDS = ".hoodie/.aux/lake_doctor"
BEGUN, ENDED = "begun", "ended"


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that was moved away: where it was, where it is now, and what it was."""

    path: str
    kept_as: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Record:
    """One repair. `at` is ISO 8601 with zone; `evidence` is what the decision rested on, in words."""

    record_id: str
    at: str
    by: str
    shape: str
    instant: str
    evidence: tuple[str, ...]
    does: str
    result: str = ""
    """How it ended; empty while it has only begun."""
    removed: tuple[RemovedFile, ...] = ()
    run_id: str = ""
    """The DAG run that was started, where the repair is a service."""


def keep_begun(storage: Storage, record: Record) -> int:
    """Write a repair down before it is done; return the store's time, in ms. Raises StorageError."""
    path = _path(record.record_id, BEGUN)
    storage.create(path, _to_json(record))
    written = storage.stat(path)
    return 0 if written is None else written.modified_ms


def keep_ended(storage: Storage, record: Record) -> None:
    """Write down how a repair ended. Raises StorageError."""
    storage.create(_path(record.record_id, ENDED), _to_json(record))


def load_records(storage: Storage) -> tuple[Record, ...]:
    """Return all repairs of a table, oldest first. Raises DamagedFileError, StorageError."""
    try:
        names = storage.list_names(RECORDS)
    except FileNotFoundError:
        return ()
    newest: dict[str, str] = {}
    for name in sorted(names):  # begun comes before ended
        record_id, _, rest = name.partition(".")
        if rest in {f"{BEGUN}.json", f"{ENDED}.json"}:
            newest[record_id] = name
    return tuple(_from_json(storage.read_bytes(f"{RECORDS}/{name}"), name) for _, name in sorted(newest.items()))


def kept_as(record_id: str, path: str) -> str:
    """Return where a repair keeps a file that it moves away."""
    return f"{RECORDS}/{record_id}/{path.rpartition('/')[2]}"


def _path(record_id: str, state: str) -> str:
    return f"{RECORDS}/{record_id}.{state}.json"


def _to_json(record: Record) -> bytes:
    return json.dumps(asdict(record), indent=2, sort_keys=True).encode()


def _from_json(content: bytes, name: str) -> Record:
    try:
        body: dict[str, Any] = json.loads(content)
        removed = tuple(RemovedFile(**entry) for entry in body.pop("removed"))
        return Record(**{**body, "evidence": tuple(body["evidence"]), "removed": removed})
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedFileError(f"{RECORDS}/{name} is no record of a repair: {error}") from error
