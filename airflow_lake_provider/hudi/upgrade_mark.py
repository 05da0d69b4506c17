"""What a change of a table's version that is on its way left in the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.errors import DamagedFileError
from airflow_lake_provider.job_contract import UPGRADE_MARK, ContractError, UpgradeMark, from_json

if TYPE_CHECKING:
    from airflow_lake_provider.storage.table_storage import Storage

MAX_MARK_BYTES = 16 * 1024 * 1024
"""Limit of the mark, which names each instant of the active timeline."""


def load_upgrade_mark(storage: Storage) -> UpgradeMark | None:
    """Return the mark; None without one. Raises DamagedFileError for a file of another content."""
    try:
        return from_json(UpgradeMark, storage.read_bytes(UPGRADE_MARK, MAX_MARK_BYTES).decode())
    except FileNotFoundError:
        return None
    except (ContractError, UnicodeDecodeError) as error:
        raise DamagedFileError(f"table {storage.base_path!r}: {UPGRADE_MARK} is not readable: {error}") from error
