"""Erasure of record keys from real tables; a byte search of its own is the judge, and rows kept outside Hudi."""

from __future__ import annotations

import json
import os
import shutil
import zlib
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from conftest import Table, run

from airflow_lake_provider.job_contract import (
    ERASE_FOLDER,
    ERASE_SINKS,
    ERASE_STEP,
    SAFEPOINT,
    EraseStep,
    FailureKind,
    JobRequest,
    Mode,
    Outcome,
    Service,
    ServiceResult,
)
from lake_jobs.hudi.table import open_client, read_table_state
from lake_jobs.services import erasure_search
from lake_jobs.services.erasure_rules import ErasedKey
from lake_jobs.services.erasure_search import search_files
from local_stack import lake_writer
from tests.support.killed_jobs import kill_at
from tests.support.spark_session import ONE_TASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

WITH_INDEXES = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
}
ERASED = (0, 7, 39)
"""The smallest key and the largest one are bounds in column statistics."""


def key_of(number: int) -> str:
    return f"subject-{number:03}@example.org"


class Subjects:
    """A table whose record keys are personal, and the rows that it must have."""

    def __init__(self, spark: SparkSession, folder: Path, type: str, version: int, **options: str) -> None:
        self.spark = spark
        options = {"hoodie.datasource.write.recordkey.field": "mail", **ONE_TASK, **options}
        self.table = Table(
            lake_writer.WrittenTable("subjects", str(folder / "lake" / "subjects"), type, version, hudi_options=options)
        )
        self.folder = folder / "erasure"
        self.folder.mkdir()
        self.rows: dict[int, int] = {}

    def write(self, numbers: Iterable[int], ts: int, **more: str) -> None:
        rows = dict.fromkeys(numbers, ts)
        found = [(key_of(number), f"c{number % 3}", ts) for number in rows]
        frame = self.spark.createDataFrame(found, "mail string, city string, ts long").coalesce(1)
        settings = lake_writer.write_options(self.table.written, 0, None, more)
        frame.write.format("hudi").options(**settings).mode("append").save(str(self.table.path))
        self.rows |= rows

    def name_keys(self, numbers: Iterable[int] = ERASED) -> None:
        lines = [json.dumps({"key": key_of(number)}) for number in numbers]
        (self.folder / "keys.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def request(self, step: EraseStep, **more: str) -> JobRequest:
        options = {ERASE_STEP: step.value, ERASE_FOLDER: str(self.folder), ERASE_SINKS: "sink files keeps history"}
        return self.table.request(Mode.ERASE, service=Service.TTL, service_options=options | more)

    def step(self, step: EraseStep) -> ServiceResult:
        result = run(self.spark, self.request(step))
        assert not any(key_of(number) in result.message for number in range(40)), "a key is in a message"
        return result

    def erase(self) -> ServiceResult:
        for step in (EraseStep.DELETE, EraseStep.REWRITE):
            result = self.step(step)
            assert result.outcome is Outcome.COMPLETED, result.message
        return self.step(EraseStep.PROVE)

    def receipt(self) -> dict[str, object]:
        return json.loads((self.folder / "receipt.json").read_text(encoding="utf-8"))

    def require_gone(self, proved: ServiceResult) -> None:
        for number in ERASED:
            assert files_with(self.table.path, key_of(number)) == [], proved.message
        assert proved.outcome is Outcome.COMPLETED, proved.message

    def require_rows(self, gone: Iterable[int] = ERASED) -> None:
        expected = {key_of(number): ts for number, ts in self.rows.items() if number not in set(gone)}
        for uses_metadata in ("true", "false"):
            read = self.spark.read.format("hudi").option("hoodie.metadata.enable", uses_metadata)
            assert dict(map(tuple, read.load(str(self.table.path)).select("mail", "ts").collect())) == expected


def fill(subjects: Subjects) -> None:
    """Write older versions, log files and, where there are indexes, entries for them."""
    subjects.write(range(40), 1)
    subjects.write(range(0, 40, 2), 2)
    subjects.write([7, 8, 9], 3)


def files_with(table: Path, text: str) -> list[str]:
    """Return the files that have a text: as bytes, packed by gzip or deflate, or in a column of Parquet."""
    found = []
    for path in sorted(path for path in table.rglob("*") if path.is_file() and path.suffix != ".crc"):
        content = path.read_bytes()
        parts = [content]
        at = content.find(b"\x1f\x8b\x08")
        while at >= 0:
            with suppress(zlib.error):
                parts.append(zlib.decompressobj(wbits=31).decompress(content[at:]))
            at = content.find(b"\x1f\x8b\x08", at + 1)
        if path.suffix == ".parquet":
            columns = pq.ParquetFile(path).read()
            parts.append(repr(columns.to_pylist()).encode())
        if any(text.encode() in part for part in parts):
            found.append(str(path.relative_to(table)))
    return found


@pytest.mark.parametrize(
    ("type", "version", "options"),
    [
        pytest.param("MOR", 9, WITH_INDEXES, id="mor-9-indexes"),
        pytest.param("COW", 6, {}, id="cow-6"),
        pytest.param("COW", 9, WITH_INDEXES, id="cow-9-indexes", marks=pytest.mark.soak),
        pytest.param("MOR", 6, {}, id="mor-6", marks=pytest.mark.soak),
        pytest.param("MOR", 9, {}, id="mor-9", marks=pytest.mark.soak),
    ],
)
def test_no_file_of_the_table_has_an_erased_key(
    spark: SparkSession, tmp_path: Path, type: str, version: int, options: dict[str, str]
) -> None:
    subjects = Subjects(spark, tmp_path, type, version, **options)
    fill(subjects)
    subjects.name_keys()
    before = subjects.table.files()

    checked = subjects.step(EraseStep.CHECK)
    assert checked.outcome is Outcome.COMPLETED, checked.message
    assert "0 of 3 keys are in none of them" in checked.message
    assert "sink files keeps history" in checked.message
    assert subjects.table.files() == before
    for number in ERASED:
        assert files_with(subjects.table.path, key_of(number)), "the judge finds a key where it is"

    proved = subjects.erase()

    subjects.require_gone(proved)
    subjects.require_rows()
    receipt = subjects.receipt()
    assert [key["kept"] for key in receipt["keys"]] == [[], [], []]
    assert all(key["deleted_at"] and key["gone_at"] for key in receipt["keys"])
    assert "example.org" not in json.dumps(receipt)
    assert oct(os.stat(subjects.folder / "erasure.json").st_mode)[-3:] == "600"

    # Each step again, as where its task is cleared: nothing is done twice.
    files = subjects.table.files()
    assert subjects.step(EraseStep.DELETE).outcome is Outcome.COMPLETED
    assert subjects.table.files() == files
    again = subjects.erase()
    assert again.outcome is Outcome.COMPLETED, again.message
    assert subjects.receipt()["keys"] == receipt["keys"]
    subjects.require_rows()


def test_savepoint_delays_an_erasure_and_is_named(spark: SparkSession, tmp_path: Path) -> None:
    subjects = Subjects(spark, tmp_path, "COW", 9)
    fill(subjects)
    subjects.name_keys()
    saved = max(subjects.table.completed())
    settings = lake_writer.write_options(subjects.table.written, 3, None, {"hoodie.table.services.enabled": "true"})
    with open_client(spark, str(subjects.table.path), settings, {}) as client:
        client.savepoint(saved, "people", "before the erasure")

    kept = subjects.erase()

    assert (kept.outcome, kept.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED)
    assert f"savepoint {saved} keeps it" in kept.message, kept.message
    assert not any(key["gone_at"] for key in subjects.receipt()["keys"])
    subjects.require_rows()
    with open_client(spark, str(subjects.table.path), settings, {}) as client:
        client.deleteSavepoint(saved)
    assert subjects.step(EraseStep.REWRITE).outcome is Outcome.COMPLETED
    subjects.require_gone(subjects.step(EraseStep.PROVE))
    subjects.require_rows()


def test_hold_delays_an_erasure_and_a_key_that_comes_back_is_named(spark: SparkSession, tmp_path: Path) -> None:
    subjects = Subjects(spark, tmp_path, "MOR", 9)
    fill(subjects)
    subjects.name_keys()
    held = min(subjects.table.completed("deltacommit"))
    options = subjects.request(EraseStep.DELETE).hudi_options
    for step in (EraseStep.DELETE, EraseStep.REWRITE, EraseStep.PROVE):
        request = replace(subjects.request(step), hudi_options={**options, SAFEPOINT: held})
        result = run(spark, request)
    assert result.outcome is Outcome.FAILED
    assert f"holds what was written since {held}" in result.message, result.message

    subjects.write([7], 9)
    back = subjects.step(EraseStep.REWRITE)
    assert back.failure_kind is FailureKind.REFUSED, back.message
    named = subjects.step(EraseStep.PROVE)
    assert "wrote the key again after deletion" in named.message, named.message
    subjects.require_gone(subjects.erase())
    subjects.require_rows()


def test_quarantine_and_replaced_file_groups_are_searched_and_named(spark: SparkSession, tmp_path: Path) -> None:
    subjects = Subjects(spark, tmp_path, "COW", 9)
    fill(subjects)
    subjects.name_keys()
    clustered = subjects.table.request(Mode.SCHEDULE_AND_EXECUTE, service=Service.CLUSTERING)
    assert run(spark, clustered).outcome is Outcome.COMPLETED
    old = min(subjects.table.path.glob("c0/*.parquet"), key=lambda path: path.name.rpartition("_")[2])
    quarantined = subjects.table.path / ".hoodie" / ".aux" / "lake_quarantine" / "1" / "files" / "c0"
    quarantined.mkdir(parents=True)
    shutil.copy(old, quarantined)

    kept = subjects.erase()

    assert kept.outcome is Outcome.FAILED
    assert "the service orphans has quarantined it" in kept.message
    assert all(len(key["kept"]) == (key["line"] != 2) for key in subjects.receipt()["keys"]), kept.message
    shutil.rmtree(quarantined.parents[1])
    subjects.require_gone(subjects.step(EraseStep.PROVE))
    subjects.require_rows()


def test_large_file_is_searched_in_parts_with_the_same_result(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subjects = Subjects(spark, tmp_path, "MOR", 9, **WITH_INDEXES)
    fill(subjects)
    keys = [ErasedKey(number, key_of(number)) for number in ERASED]
    state = read_table_state(spark, str(subjects.table.path))
    whole = search_files(spark, state, keys)
    monkeypatch.setattr(erasure_search, "MAX_FILE_BYTES", 8192)
    monkeypatch.setattr(erasure_search, "_OVERLAP_BYTES", 4096)
    in_parts = search_files(spark, state, keys)
    assert {(place.line, place.path) for place in in_parts.places} == {(p.line, p.path) for p in whole.places}
    assert in_parts.unread == whole.unread == ()


def has_instant(table: Table, ending: str, count: int) -> bool:
    return sum(name.endswith(ending) for name in table.files()) >= count


POINTS: dict[str, tuple[EraseStep, Callable[[Subjects], bool]]] = {
    "before the deletion": (EraseStep.DELETE, lambda found: (found.folder / "erasure.json").exists()),
    "deleting": (EraseStep.DELETE, lambda found: has_instant(found.table, ".deltacommit.inflight", 4)),
    "deleted": (EraseStep.DELETE, lambda found: has_instant(found.table, ".deltacommit", 4)),
    "compacting": (EraseStep.REWRITE, lambda found: has_instant(found.table, ".compaction.inflight", 1)),
    "compacted": (EraseStep.REWRITE, lambda found: bool(found.table.completed())),
    "cleaning": (EraseStep.REWRITE, lambda found: has_instant(found.table, ".clean.inflight", 1)),
    "cleaned": (EraseStep.REWRITE, lambda found: bool(found.table.completed("clean"))),
}


@pytest.mark.parametrize("points", [["deleting"], pytest.param(list(POINTS), marks=pytest.mark.soak)])
def test_killed_anywhere_an_erasure_goes_on_and_does_nothing_twice(
    spark: SparkSession, tmp_path: Path, points: list[str]
) -> None:
    subjects = Subjects(spark, tmp_path, "MOR", 9, **WITH_INDEXES)
    fill(subjects)
    subjects.name_keys()
    whole = tmp_path / "whole"
    shutil.copytree(subjects.table.path, whole)
    for point in points:
        shutil.rmtree(subjects.table.path)
        shutil.copytree(whole, subjects.table.path)
        (subjects.folder / "erasure.json").unlink(missing_ok=True)
        (subjects.folder / "receipt.json").unlink(missing_ok=True)
        step, is_there = POINTS[point]
        if step is not EraseStep.DELETE:
            assert subjects.step(EraseStep.DELETE).outcome is Outcome.COMPLETED
        kill_at(subjects.table, subjects.request(step), tmp_path / f"killed {point}", partial(is_there, subjects))
        age_heartbeats(subjects.table)

        subjects.require_gone(subjects.erase())

        subjects.require_rows()
        assert all(key["deleted_at"] for key in subjects.receipt()["keys"]), point
        deletions = [name for name in subjects.table.files() if name.endswith(".deltacommit")]
        assert len(deletions) == 4, (point, deletions)


def age_heartbeats(table: Table) -> None:
    """A killed job's heartbeats expire after two minutes."""
    for beat in (table.path / ".hoodie" / ".heartbeat").glob("*"):
        os.utime(beat, (1_000_000, 1_000_000))
