"""Tables below a root are found within bounds, never outside the root, and a damaged one hides none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from airflow_lake_provider.hooks.lake import MAX_TABLES
from airflow_lake_provider.http import MAX_LIST_BYTES
from airflow_lake_provider.hudi.base_path import (
    MAX_BASE_PATH_LENGTH,
    MAX_NAME_LENGTH,
    FoundTables,
    discover_tables,
)
from airflow_lake_provider.manager.api.models import DiscoveredBody
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable


def search(root: Path, depth: int = 3, most_folders: int = 1000) -> FoundTables:
    return discover_tables(str(root), open_storage, depth, most_folders)


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    lake = tmp_path / "lake"
    for path in ("orders", "sales/clicks", "sales/2026/views", "a/b/c/d"):
        HandMadeTable.create(lake / path)
    return lake


def paths(found: FoundTables, lake: Path) -> list[str]:
    return [table.base_path.removeprefix(f"{lake}/") for table in found.tables]


def test_tables_are_found_down_to_the_depth(lake: Path) -> None:
    found = search(lake)
    assert paths(found, lake) == ["orders", "sales/clicks", "sales/2026/views"]
    assert found.tables[0].name == "orders"
    assert (found.is_complete, found.problems) == (True, ())
    assert "a/b/c/d" in paths(search(lake, depth=4), lake)
    assert paths(search(lake, depth=1), lake) == ["orders"]


def test_root_that_is_a_table_is_found_and_nothing_below_a_table_is_searched(lake: Path) -> None:
    HandMadeTable.create(lake / "orders" / "region=eu" / "inner")
    found = search(lake / "orders")
    assert (paths(found, lake), found.folders) == (["orders"], 1)


def test_hidden_folders_and_files_are_not_searched(lake: Path) -> None:
    for name in (".trash", "_temporary"):
        HandMadeTable.create(lake / name / "x")
    (lake / "file").write_text("x", encoding="utf-8")
    assert paths(search(lake), lake) == ["orders", "sales/clicks", "sales/2026/views"]


def test_links_that_lead_out_of_the_root_are_named_and_not_followed(lake: Path, tmp_path: Path) -> None:
    HandMadeTable.create(tmp_path / "secret" / "salaries")
    HandMadeTable.create(tmp_path / "lake2" / "beside")
    os.symlink(tmp_path / "secret", lake / "link")
    os.symlink(tmp_path / "lake2", lake / "link2")
    os.symlink(lake / "sales", lake / "inside")
    os.symlink(lake, lake / "loop")
    found = search(lake)
    assert "inside/clicks" in paths(found, lake)
    assert not any("salaries" in path or "beside" in path for path in paths(found, lake))
    assert [problem.split(" ")[0].rsplit("/", 1)[-1] for problem in found.problems] == ["link", "link2", "loop"]


def test_damaged_table_is_named_and_the_others_are_found(lake: Path) -> None:
    (lake / "orders" / ".hoodie" / "hoodie.properties").write_bytes(b"\x00garbage")
    HandMadeTable.create(lake / "sales" / "bad\nname")
    found = search(lake)
    assert paths(found, lake) == ["sales/clicks", "sales/2026/views"]
    assert len(found.problems) == 2
    assert "orders" in found.problems[0]


def test_search_ends_at_the_most_folders_and_says_so(lake: Path) -> None:
    found = search(lake, most_folders=3)
    assert (found.folders, found.is_complete) == (3, False)
    assert "more than 3 folders" in found.problems[-1]


def test_root_that_is_not_there_is_named(tmp_path: Path) -> None:
    found = search(tmp_path / "nothing")
    assert (found.tables, found.is_complete) == ((), False)
    assert str(tmp_path / "nothing") in found.problems[0]


def test_names_that_the_manager_refuses_keep_no_other_table_from_it(lake: Path) -> None:
    """It takes the tables of a root together: one that it must refuse would have kept all of them out."""
    for number, name in enumerate(("x" * 501, "   ", "a\\u0000b", "\\ud800", "a\\u202Eb", "\\u001b[2J", "a\\nb")):
        table = HandMadeTable.create(lake / f"n{number}")
        properties = table.path / ".hoodie" / "hoodie.properties"
        lines = [line for line in properties.read_text().splitlines() if not line.startswith("hoodie.table.name")]
        properties.write_text("\n".join([*lines, f"hoodie.table.name={name}", ""]))
    HandMadeTable.create(lake / "caf\udce9")
    HandMadeTable.create(lake / "a\x1b[2Jb")
    found = search(lake)
    assert {"orders", "sales/clicks", "sales/2026/views"} <= {*paths(found, lake)}
    tables = [{"base_path": table.base_path, "table_name": table.name} for table in found.tables]
    assert DiscoveredBody.model_validate({"tables": tables})
    text = json.dumps([tables, found.problems], ensure_ascii=False)
    text.encode()
    assert "\\u0000" not in text
    assert all(problem.isprintable() for problem in found.problems)
    assert len(found.problems) == 8


def test_found_tables_with_the_longest_names_fit_into_a_request() -> None:
    longest = {
        "base_path": "/" + "\U0001f600" * (MAX_BASE_PATH_LENGTH - 1),
        "table_name": "\U0001f600" * MAX_NAME_LENGTH,
    }
    assert len(json.dumps({"tables": [longest] * MAX_TABLES}, ensure_ascii=False).encode()) < MAX_LIST_BYTES
