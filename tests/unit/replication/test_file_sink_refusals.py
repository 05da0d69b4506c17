"""The file sink on a full disk, and with records that its format cannot hold."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from airflow_lake_provider.errors import RecordRefusedError, SinkUnavailableError
from airflow_lake_provider.replication.change import Change, ChangeMode, Op
from airflow_lake_provider.replication.sink import Sink, SinkSettings, create_sink
from airflow_lake_provider.replication.sink_contract import batch, checkpoint, insert


def sink(folder: Path, **options: str) -> Sink:
    return create_sink("file", SinkSettings("t.files", "t", ChangeMode.LATEST, {"path": str(folder), **options}))


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def deliver(target: Sink) -> None:
    for number in range(50):
        target.write(batch(1, [insert(number * 1_000 + i, i * 7_919) for i in range(1_000)]))
    target.commit(checkpoint("t.files", 1))


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_full_disk_is_said_and_keeps_nothing(tmp_path: Path, form: str) -> None:
    # The kernel refuses what a file has beyond this size, as a full disk does.
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for _ in range(2):
        full = sink(tmp_path, format=form)
        full.open()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
        try:
            with pytest.raises(SinkUnavailableError, match=r"\.part: "):
                deliver(full)
            full.close()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert names(tmp_path) == []
    sink(tmp_path, format=form).open()


def test_part_of_a_killed_run_is_removed_by_the_next_one(tmp_path: Path) -> None:
    killed = sink(tmp_path)
    killed.open()
    killed.write(batch(1, [insert(1, 10)]))
    assert len(names(tmp_path)) == 1
    assert sink(tmp_path).open() is None
    assert names(tmp_path) == []
    killed.close()


def test_record_that_parquet_cannot_hold(tmp_path: Path) -> None:
    bad = Change(Op.INSERT, '{"id":3}', None, '{"id":3,"value":"three"}')
    changes = [bad if i == 3 else insert(i, i) for i in range(10)]
    stops = sink(tmp_path, format="parquet")
    stops.open()
    with pytest.raises(RecordRefusedError, match=r'record \{"id":3\}: field value: .three.*on_record_error'):
        stops.write(batch(1, changes))
    stops.close()
    for number, policy in ((1, "dead_letter"), (2, "skip")):
        goes_on = sink(tmp_path, format="parquet", on_record_error=policy)
        goes_on.open()
        goes_on.write(batch(number, changes))
        goes_on.commit(checkpoint("t.files", number))
        goes_on.close()
        rows = pq.read_table(tmp_path / f"{number:012d}.parquet").to_pylist()
        assert sorted(row["key"]["id"] for row in rows) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert names(tmp_path) == ["000000000001.parquet", "000000000002.parquet", "dead_letters/000000000001.jsonl"]
    (letter,) = (tmp_path / "dead_letters/000000000001.jsonl").read_text().splitlines()
    assert json.loads(letter)["change"]["after"] == {"id": 3, "value": "three"}
