from pathlib import Path

import pytest

from lake_jobs.driver.files import find_local_path, read_text, readable_bytes, write_text


@pytest.mark.parametrize(
    ("path", "local"),
    [
        pytest.param("/lake/a b;$(x)/ü.json", "/lake/a b;$(x)/ü.json", id="plain"),
        pytest.param("file:///lake/a b.json", "/lake/a b.json", id="file-url"),
        pytest.param("file:/lake/a.json", "/lake/a.json", id="hadoops-file-url"),
        pytest.param("hdfs://name:8020/lake/a.json", None, id="hdfs"),
        pytest.param("s3a://bucket/a.json", None, id="s3"),
    ],
)
def test_path_is_local_unless_it_has_a_scheme(path: str, local: str | None) -> None:
    assert find_local_path(path) == (None if local is None else Path(local))


def test_file_is_written_whole_and_leaves_nothing_next_to_it(tmp_path: Path) -> None:
    path = f"file://{tmp_path}/a folder/result.json"
    write_text(None, path, "first")
    write_text(None, path, "zweite Fassung: ß")
    assert read_text(None, path) == "zweite Fassung: ß"
    assert [entry.name for entry in (tmp_path / "a folder").iterdir()] == ["result.json"]


def test_path_of_another_store_needs_spark() -> None:
    with pytest.raises(OSError, match="once Spark has started"):
        read_text(None, "hdfs://name/a.json")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 * 2**30, "5 GiB"), (3 * 2**40, "3 TiB")],
)
def test_sizes_are_readable(size: int, text: str) -> None:
    assert readable_bytes(size) == text
