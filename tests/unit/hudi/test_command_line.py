from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_lake_provider.hudi.__main__ import main
from tests.support.tables import HandMadeTable


def test_missing_table_is_one_sentence_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert "no Hudi table" in printed.err


def test_missing_timeline_folder_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = HandMadeTable.create(tmp_path / "t")
    (table.path / ".hoodie" / "timeline").rmdir()
    assert main([str(table.path)]) == 2
    assert "timeline folder .hoodie/timeline is missing" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a b", "ü日本", "$(touch x); rm", "[1]*?", "{x}", "a'b\"c", "%20"])
def test_hostile_path_is_only_a_path(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    table = HandMadeTable.create(tmp_path / name)
    requested = table.commit(1)
    assert main([str(table.path), "--json"]) == 0
    assert requested in capsys.readouterr().out


def test_json_has_one_object_per_instant_with_these_keys_oldest_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = HandMadeTable.create(tmp_path / "t")
    second = table.commit(2)
    first = table.commit(1)
    (table.path / ".hoodie" / "timeline" / "20261121120003000.commit.requested").touch()
    assert main([str(table.path), "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    keys = ("requested_time", "action", "state", "completed_time")
    assert [tuple(json.loads(line).items()) for line in lines] == [
        tuple(zip(keys, values, strict=True))
        for values in (
            (first, "deltacommit", "COMPLETED", "20261121120001500"),
            (second, "deltacommit", "COMPLETED", "20261121120002500"),
            ("20261121120003000", "commit", "REQUESTED", None),
        )
    ]


def test_unknown_file_is_named_and_exit_code_1_and_the_rest_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = HandMadeTable.create(tmp_path / "t")
    requested = table.commit(1)
    (table.path / ".hoodie" / "timeline" / "surprise").touch()
    assert main([str(table.path)]) == 1
    printed = capsys.readouterr()
    assert requested in printed.out
    assert printed.err.startswith("surprise: ")


@pytest.mark.parametrize("content", [b"", b"garbage", b"Obj\x01", b'{"a":', b"[]"])
def test_check_names_the_damaged_file(tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    table = HandMadeTable.create(tmp_path / "t")
    table.commit(1)
    damaged = table.path / ".hoodie" / "timeline" / "20261121120002000_20261121120003000.commit"
    damaged.write_bytes(content)
    assert main([str(table.path), "--no-check"]) == 0
    assert main([str(table.path), "--json"]) == 1
    printed = capsys.readouterr()
    assert damaged.name in printed.err
    assert '"20261121120001000"' in printed.out, "the rest is shown"
