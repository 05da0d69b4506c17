"""`airflow lake init` names entries with sinks that a table of any team can take by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.cli import init
from airflow_lake_provider.config.settings import LakeSettings

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
