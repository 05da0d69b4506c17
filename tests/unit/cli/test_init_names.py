"""`airflow lake init` names entries with sinks that a table of any team can take by its name."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from airflow_lake_provider.cli import init
from airflow_lake_provider.config.settings import LakeSettings
from airflow_lake_provider.config.tables_file import parse_tables_file
from airflow_lake_provider.hudi.base_path import FoundTable

SINKS = "replication: [{sink: file, path: /sinks/x}]"


@pytest.mark.parametrize(
    ("entry", "tokens_file", "is_wrong"),
    [
        (f"{{name: accounts, {SINKS}}}", "tokens.yaml", True),
        (f"{{name: accounts, {SINKS}}}", "", False),
        (f"{{name: accounts, base_path: '/lake/bank/*', {SINKS}}}", "tokens.yaml", False),
        ("{name: accounts}", "tokens.yaml", False),
    ],
)
def test_entry_with_sinks_and_a_name_alone_is_reported(
    tmp_path: Path, entry: str, tokens_file: str, is_wrong: bool
) -> None:
    (tmp_path / "tables.yaml").write_text(f"tables:\n  - {entry}\n", encoding="utf-8")
    settings = LakeSettings().replace(tables_file=str(tmp_path / "tables.yaml"), tokens_file=tokens_file)
    (row,) = [row for row in init._check_settings(settings, ()) if row.check == "names"]
    assert row.state == (init.WRONG if is_wrong else init.OK)
    assert ("accounts" in row.found) == is_wrong


def test_folders_that_a_writer_named_become_no_root_and_no_pattern() -> None:
    """A list separates roots by commas, and a base path in the tables file may be a pattern."""
    paths = ("/lake/foo,/etc/t", "/lake/50%/t", "/lake/shop/*")
    found = tuple(FoundTable(path, "t") for path in paths)
    section = init._lake_section(LakeSettings(), found)
    (roots,) = [line for line in section.splitlines() if line.startswith("allowed_roots")]
    assert roots == "allowed_roots = /lake/50%%, /lake/shop"
    assert '# allowed_roots cannot hold "/lake/foo,/etc"' in section
    text = init._tables_text(Namespace(discover=""), found, "")
    entries = parse_tables_file(text, "file").entries
    matched = [entry for entry in entries if entry.pattern.matches("/lake/shop/orders", "t")]
    assert [entry.pattern.matches(path, "t") for entry, path in zip(entries, paths, strict=True)] == [True] * 3
    assert matched == []
