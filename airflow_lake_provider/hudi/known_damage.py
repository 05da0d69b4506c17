"""What checks of integrity have found of a table, and left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import DAMAGE_FOLDER, DamageKind, describe_damage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow_lake_provider.storage.store import FileEntry
    from airflow_lake_provider.storage.table_storage import Storage


def load_known_damage(storage: Storage) -> Iterator[tuple[DamageKind, FileEntry, str]]:
    """Yield the kinds of damage that are known, each with its file and what that says. Raises StorageError."""
    try:
        entries = {entry.name: entry for entry in storage.list_entries(DAMAGE_FOLDER)}
    except FileNotFoundError:
        return
    for kind in DamageKind:
        entry = entries.get(kind.place.rpartition("/")[2])
        if entry is None:
            continue
        try:
            yield kind, entry, describe_damage(storage.read_bytes(kind.place))
        except FileNotFoundError:  # a check has just found it gone
            continue
