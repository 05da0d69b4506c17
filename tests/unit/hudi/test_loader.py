from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_lake_provider.errors import TableNotFoundError
from airflow_lake_provider.hudi.properties import load_table_properties
from airflow_lake_provider.hudi.timeline import load_listing, load_timeline
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable


@pytest.fixture
def table(tmp_path: Path) -> HandMadeTable:
    return HandMadeTable.create(tmp_path / "t")


def test_load_of_layout_2_stats_only_completed_files_whose_names_give_no_completion(
    table: HandMadeTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hudi takes the modification time of such a file."""
    folder = table.path / ".hoodie" / "timeline"
    text = (table.path / ".hoodie" / "hoodie.properties").read_text(encoding="utf-8")
    utc = f"{text}\nhoodie.table.timeline.timezone=UTC"
    (table.path / ".hoodie" / "hoodie.properties").write_text(utc, encoding="utf-8")
    early = folder / "20261121060000000.commit"
    early.write_bytes(b"{}")
    os.utime(early, ns=(1_795_240_904_078_000_000,) * 2)
    table.commit(1)
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    timeline = load_timeline(storage, properties)
    assert timeline.instants[0].completed_time == "20261121060144078"
    assert storage.calls.stats == 1

    listing = load_listing(storage, properties)
    table.commit(2)
    stats = storage.calls.stats
    extended = load_listing(storage, properties, listing)
    assert extended == load_listing(storage, properties)
    assert extended.timeline.instants[0].completed_time == "20261121060144078"
    assert storage.calls.stats == stats + 1, "the earlier listing's answer is kept"


def test_load_of_names_that_are_no_text_reports_them_printable(table: HandMadeTable) -> None:
    folder = os.fsencode(table.path / ".hoodie" / "timeline")
    with open(folder + b"/\xff.commit", "wb"):
        pass
    storage = open_storage(str(table.path))
    problems = load_timeline(storage, load_table_properties(storage)).problems
    assert [problem.file_name.encode("ascii") for problem in problems] == [b"\\udcff.commit"]


def test_load_with_an_earlier_listing_after_files_were_removed_and_added_builds_anew(table: HandMadeTable) -> None:
    folder = table.path / ".hoodie" / "timeline"
    for second in (1, 2, 3):
        table.commit(second)
    storage = open_storage(str(table.path))
    properties = load_table_properties(storage)
    earlier = load_listing(storage, properties)
    min(folder.iterdir()).unlink()
    table.commit(4)
    assert load_listing(storage, properties, earlier) == load_listing(storage, properties)
    assert len(load_listing(storage, properties, earlier).timeline.instants) == 3


@pytest.mark.parametrize("path", ["", "a\0b", "/tmp/\ud800"], ids=["empty", "nul", "half-a-surrogate-pair"])
def test_open_of_what_is_no_path_finds_no_table(path: str) -> None:
    with pytest.raises(TableNotFoundError, match="not a path"):
        open_storage(path)
