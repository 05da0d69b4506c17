"""What is no file of a table's, or is too large, is read by no driver: others of its tables wait for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lake_jobs.hudi import regular_files


def test_pipe_device_and_sparse_file_are_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "whole").write_bytes(b"x" * 100_000)
    assert regular_files.read_regular(tmp_path / "whole") == b"x" * 100_000
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with (tmp_path / "sparse").open("wb") as stream:
        stream.truncate(1 << 40)
    for name, said in (("pipe", "is no file"), ("device", "is no file"), ("sparse", "more than 134,217,728 bytes")):
        with pytest.raises(OSError, match=said):
            regular_files.read_regular(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        regular_files.read_regular(tmp_path / "gone")


def test_what_is_neither_file_nor_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "pipe")
    with os.scandir(tmp_path) as entries:
        assert {entry.name for entry in entries if regular_files.is_odd(entry)} == {"link", "pipe"}
