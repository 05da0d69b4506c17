"""What a hold keeps on disk, from the commits' own metadata."""

from __future__ import annotations

import pytest

from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.manager.sink_state import held_bytes


def wrote(*files: tuple[str, str, int], replaced: tuple[str, ...] = ()) -> CommitMetadata:
    stats = tuple(WriteStat("p", group, f"p/{name}", size, size) for group, name, size in files)
    return CommitMetadata("UPSERT", stats, tuple(("p", group) for group in replaced))


COMMITS = [
    ("1", wrote(("a", "a_1.parquet", 100), ("b", "b_1.parquet", 7))),
    ("2", wrote(("a", "a_2.parquet", 200))),
    ("3", wrote(("a", ".a_2.log.1", 30))),
    ("4", wrote(("a", "a_4.parquet", 400))),
    ("5", wrote(("c", "c_5.parquet", 1), replaced=("b",))),
]


@pytest.mark.parametrize(
    ("hold", "expected"),
    [
        pytest.param("0", 100 + 230 + 7, id="everything"),
        pytest.param("2", 100 + 230 + 7, id="replaced-by-the-hold-itself"),
        pytest.param("3", 230 + 7, id="only-what-was-replaced-later"),
        pytest.param("5", 7, id="replaced-file-group"),
        pytest.param("6", 0, id="nothing"),
    ],
)
def test_held_bytes_are_those_of_files_replaced_since_the_hold(hold: str, expected: int) -> None:
    assert held_bytes(COMMITS, hold) == expected
