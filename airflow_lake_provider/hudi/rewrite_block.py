"""The mark that a job leaves in a table when a rewrite would have changed what readers see (G7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_lake_provider.job_contract import REWRITE_BLOCK, describe_block

if TYPE_CHECKING:
    from airflow_lake_provider.storage.table_storage import Storage


def load_rewrite_block(storage: Storage) -> str:
    """Return why no service may rewrite a table's rows; empty when they may. Raises StorageError."""
    try:
        return describe_block(storage.read_bytes(REWRITE_BLOCK))
    except FileNotFoundError:
        return ""
