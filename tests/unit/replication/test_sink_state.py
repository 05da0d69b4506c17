"""How far a sink is behind, and what a hold keeps on disk, from the timeline and the commits' own metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.hudi.commit_metadata import CommitMetadata, WriteStat
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.manager.supervision.writers_and_sinks import (
    find_changed_time,
    held_bytes,
    hold_of,
    load_sink_state,
)
from airflow_lake_provider.planner.table_view import TableViewCache
from airflow_lake_provider.replication.change import CommitRef
from airflow_lake_provider.replication.checkpoint import Checkpoint, to_text, with_done
from airflow_lake_provider.shared.actions import Action
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.fixture_tables import FixtureTable, unpack
from tests.unit.planner.views import base, commit, completed, view


def wrote(*files: tuple[str, str, int], replaced: tuple[str, ...] = ()) -> CommitMetadata:
    stats = tuple(
        WriteStat("p", group, f"p/{name}", size, size, name in {"a_1.parquet", "b_1.parquet", "c_5.parquet"})
        for group, name, size in files
    )
    return CommitMetadata("UPSERT", stats, tuple(("p", group) for group in replaced))


COMMITS = [
    ("1", wrote(("a", "a_1.parquet", 100), ("b", "b_1.parquet", 7))),
    ("2", wrote(("a", "a_2.parquet", 200))),
    ("3", wrote(("a", ".a_2.log.1", 30))),
    ("4", wrote(("a", "a_4.parquet", 400))),
    ("5", wrote(("c", "c_5.parquet", 1), replaced=("b",))),
]


@pytest.mark.parametrize(
    ("hold", "expected", "is_read"),
    [
        pytest.param("0", 100 + 230 + 7, "12345", id="everything"),
        pytest.param("2", 100 + 230 + 7, "12345", id="replaced-by-the-hold-itself"),
        pytest.param("3", 230 + 7, "12345", id="only-what-was-replaced-later"),
        pytest.param("4", 230 + 7, "12345", id="with-its-log-file"),
        pytest.param("6", 0, "", id="nothing"),
    ],
)
def test_held_bytes_are_those_of_files_replaced_since_the_hold(hold: str, expected: int, is_read: str) -> None:
    commits, seen = dict(COMMITS), set[str]()

    def read(requested: str) -> CommitMetadata:
        seen.add(requested)
        return commits[requested]

    assert held_bytes(list(commits), read, hold) == expected
    assert seen <= set(is_read)


def test_metadata_is_read_until_the_replaced_files_are_found_and_no_further() -> None:
    first = ("0", wrote(("a", "a_1.parquet", 100), ("b", "b_1.parquet", 7)))
    commits = dict([first, *((str(number), wrote(("a", f"a_{number}.parquet", 100))) for number in range(1, 10))])
    seen: list[str] = []

    def read(requested: str) -> CommitMetadata:
        seen.append(requested)
        return commits[requested]

    assert held_bytes(list(commits), read, "9") == 100
    assert seen == ["9", "8"]
    # A file group that is new replaces nothing.
    commits["91"] = wrote(("c", "c_5.parquet", 1))
    seen.clear()
    assert held_bytes(list(commits), read, "91") == 0
    assert seen == ["91"]


def checkpoint_of(table: FixtureTable, without: int) -> str:
    """The checkpoint of a sink that lacks the last commits of a table."""
    writes = [i for i in table.expected if i["action"] in {"commit", "deltacommit", "replacecommit"}]
    commits = sorted(
        (CommitRef(i["requested_time"], i["completed_time"]) for i in writes if i["state"] == "COMPLETED"),
        key=lambda found: found.order,
    )
    has = commits[: len(commits) - without]
    done = with_done(Checkpoint("t.s", 1, 1, has[-1]), [found.requested_time for found in has], commits)
    return to_text(done)


def test_state_of_a_sink_reads_the_metadata_of_what_it_lacks_alone(tmp_path: Path) -> None:
    table = unpack("mor_v9", tmp_path)
    calls = []
    for without in (0, 1, 2):
        storage = open_storage(str(table.path))
        state = load_sink_state(storage, checkpoint_of(table, without), "", 2_000_000_000.0, {})
        assert state.lag.commits == without
        calls.append(storage.calls.opens)
    assert [count - calls[0] for count in calls] == [0, 1, 2]


def cut(table: FixtureTable, after: str) -> None:
    """Take from a table what was requested after an instant, as if it had not happened yet."""
    for path in (table.path / ".hoodie" / "timeline").iterdir():
        if path.is_file() and path.name[:17] > after:
            path.unlink()


@pytest.mark.parametrize(
    ("name", "until", "newest", "changed"),
    [
        pytest.param("mor_v9", "20261121065930000", "20261121065930485", "20261121065928056", id="compaction"),
        pytest.param("cow_v9", "20261121070047000", "20261121070047597", "20261121070046426", id="clean"),
        pytest.param("cow_v9", "20261121070049000", "20261121070049325", "20261121070046426", id="clustering"),
        pytest.param("mor_v9", "20261121065940100", "20261121065940777", "20261121065935422", id="rollback"),
        pytest.param("cow_v9", "20261121070050000", "20261121070051131", "20261121070051131", id="write"),
    ],
)
def test_table_has_changed_for_sinks_when_rows_did(
    tmp_path: Path, name: str, until: str, newest: str, changed: str
) -> None:
    table = unpack(name, tmp_path)
    cut(table, until)
    seen = TableViewCache().refresh(str(table.path))
    assert seen.timeline.latest_completed_time() == newest
    assert find_changed_time(seen) == changed


def test_restore_is_a_change_of_the_table() -> None:
    found = view((completed(1, Action.COMMIT), commit(base("a", 1))), plans=(completed(5, Action.RESTORE),))
    assert find_changed_time(found) == completed(5, Action.RESTORE).completed_time


def test_write_whose_metadata_cannot_be_read_counts_as_a_change() -> None:
    found = view((completed(1, Action.COMMIT), commit(base("a", 1), operation="COMPACT")))
    assert find_changed_time(found) == ""
    damaged = view(plans=(completed(1, Action.COMMIT),))
    assert isinstance(damaged.timeline, Timeline)
    assert find_changed_time(damaged) == completed(1).completed_time


def test_sink_that_begins_with_a_snapshot_holds_nothing() -> None:
    assert hold_of("20261122101500123", needs_snapshot=False) == "20261122101500123"
    assert hold_of("20261122101500123", needs_snapshot=True) == ""
