"""What the writer of one table plants below its `.hoodie` reaches no file outside that table, run as a service.

The judge is a folder of another owner next to the table: its files' names and bytes.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table, content, run
from test_orphans_on_hudi import FOLDER, search

from airflow_lake_provider.job_contract import Mode, Outcome

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = "20200101000000000"


@pytest.fixture(scope="module")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of another owner with data, and with a quarantine."""
    bank = tmp_path_factory.mktemp("bank")
    (bank / "p").mkdir()
    (bank / "p" / "accounts.parquet").write_bytes(b"rows of the bank")
    write_quarantine(bank / FOLDER / ID, "p/old.parquet")
    return bank


def write_quarantine(folder: Path, path: str) -> None:
    kept = folder / "files" / path
    if ".." not in path:
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_bytes(b"quarantined")
    folder.mkdir(parents=True, exist_ok=True)
    entry = {"path": path, "size_bytes": 11, "modified_ms": 1, "reason": "r"}
    body = {"version": 1, "made_ms": 1, "job_id": "j", "files": [entry]}
    (folder / "manifest.json").write_text(json.dumps(body))


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plant(table: Table, bank: Path, how: str) -> str:
    """Plant one kind of quarantine; return where the table's own folder has it."""
    quarantine = table.path / FOLDER
    if how == "path out of the table":
        write_quarantine(quarantine / ID, f"../{bank.name}/p/new.parquet")
        return ""
    target = {"the folder of all": quarantine, "one of them": quarantine / ID, ".aux": quarantine.parent}.get(how)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            shutil.rmtree(target)
        target.symlink_to(bank / target.relative_to(table.path))
        return str(target.relative_to(table.path))
    write_quarantine(quarantine / ID, "linked/accounts.parquet")  # its own files are a link to those of the bank
    shutil.rmtree(quarantine / ID / "files" / "linked")
    (quarantine / ID / "files" / "linked").symlink_to(bank / "p")
    return f"{FOLDER}/{ID}/files/linked"


def test_planted_quarantine_moves_reads_and_deletes_nothing_of_another_owner(
    spark: SparkSession, make_table: MakeTable, bank: Path
) -> None:
    table = make_table(type="COW", version=9)
    of_bank = files_below(bank)
    rows = content(spark, table)
    for how in ("path out of the table", "files of one", "one of them", "the folder of all", ".aux"):
        planted = plant(table, bank, how)
        for mode in (Mode.UNDO, Mode.EXECUTE):
            result = run(spark, search(table, mode))
            assert result.outcome is Outcome.FAILED, (how, mode, result.message)
            assert (planted or "lies outside the table") in result.message, (how, mode)
            assert files_below(bank) == of_bank, (how, mode)
        assert content(spark, table) == rows
        assert not list(table.path.rglob("old.parquet")) or how in {"one of them", "the folder of all", ".aux"}
        (table.path / planted).unlink() if planted else shutil.rmtree(table.path / FOLDER / ID)
        shutil.rmtree(table.path / FOLDER, ignore_errors=True)
