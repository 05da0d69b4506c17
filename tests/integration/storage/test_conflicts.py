"""Early conflict detection on tables that lie on HDFS and on an S3-compatible store, in both timeline layouts."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from airflow_lake_provider.conflict.conflict_table import ConflictTable
from airflow_lake_provider.conflict.contention import Claim, Verdict
from airflow_lake_provider.conflict.reservation import Reservation
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.timeline.markers import MarkerKind
from airflow_lake_provider.view.file_system_view import FileSystemTimelineView
from tests.integration.storage.lakes import Lake, upload
from tests.unit.conflict.fake_table import commit_body, keys, marker
from tests.unit.timeline.fixture_tables import unpack

OLDER, YOUNGER = "20991231000000001", "20991231000000002"
OSLO, BONN, ROME = ("city=Oslo", "f1-0"), ("city=Bonn", "f2-0"), ("event_date=2026-01-02", "f3-0")


class TableOnLake:
    """A real table of one layout, and writers whose files are put there as Hudi names them."""

    def __init__(self, lake: Lake, layout: str, test: str, folder: Path) -> None:
        self.lake = lake
        self.path = f"/conflicts/{test}/mor_{layout}"
        upload(lake, unpack(f"mor_{layout}", folder).path, self.path)
        self.timeline = "" if layout == "v6" else "timeline/"
        storage = lake.open(self.path)
        view = FileSystemTimelineView(self.path, lambda _: storage)
        self.opened = ConflictTable(storage, view.snapshot)

    def put(self, name: str, content: bytes = b"") -> None:
        self.lake.put(f"{self.path}/.hoodie/{name}", content)

    def begin(self, instant: str) -> None:
        self.put(f".heartbeat/{instant}")
        self.put(f"{self.timeline}{instant}.deltacommit.requested")
        self.put(f"{self.timeline}{instant}.deltacommit.inflight")

    def serve(self, content: bytes, file: str = "MARKERS0") -> None:
        """Write what a timeline server writes for the older writer."""
        self.put(f".temp/{OLDER}/MARKERS.type", b"TIMELINE_SERVER_BASED")
        self.put(f".temp/{OLDER}/{file}", content)

    def check(self, *groups: tuple[str, str], ahead_ms: int = 0) -> Verdict:
        """Compare the younger writer's claim."""
        claim = Claim(YOUNGER, keys(list(groups)), since=YOUNGER)
        return self.opened.check(claim, int(time.time() * 1000) + ahead_ms)

    def clashes(self, *groups: tuple[str, str], ahead_ms: int = 0) -> list[str]:
        return [clash.instant for clash in self.check(*groups, ahead_ms=ahead_ms).clashes]


def lines(*groups: tuple[str, str]) -> bytes:
    return "".join(f"{marker(OLDER, *group)}\n" for group in groups).encode()


@pytest.fixture(params=["v6", "v9"])
def table(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> TableOnLake:
    return TableOnLake(lake, request.param, request.node.name, tmp_path)


def test_direct_markers_are_seen_as_they_come_and_forgotten_with_their_folder(table: TableOnLake) -> None:
    table.begin(OLDER)
    assert table.check(OSLO, BONN).is_free
    table.put(f".temp/{OLDER}/{marker(OLDER, *OSLO)}")
    assert (table.clashes(OSLO, BONN), table.clashes(BONN, ROME)) == ([OLDER], [])
    table.put(f".temp/{OLDER}/{marker(OLDER, *BONN, is_log=True)}")
    table.put(f".temp/{OLDER}/{marker(OLDER, *ROME)}")
    assert [table.clashes(group) for group in (OSLO, BONN, ROME)] == [[OLDER]] * 3
    (writer,) = table.opened.look(int(time.time() * 1000)).live_writers()
    assert (writer.markers.kind, writer.markers.count) == (MarkerKind.DIRECT, 3)


def test_marker_files_of_a_timeline_server_are_read_again_as_they_grow(table: TableOnLake) -> None:
    table.begin(OLDER)
    table.serve(lines(OSLO))
    assert (table.clashes(OSLO), table.clashes(BONN)) == ([OLDER], [])
    table.serve(lines(OSLO, BONN))
    table.serve(lines(ROME), file="MARKERS17")
    assert [table.clashes(group) for group in (OSLO, BONN, ROME)] == [[OLDER]] * 3


def test_empty_and_cut_off_marker_files_leave_nothing_known_to_be_free(table: TableOnLake) -> None:
    table.begin(OLDER)
    table.serve(b"")
    assert not table.check(BONN).is_free, "its writer is about to fill it"
    table.serve(lines(OSLO, BONN)[:-9])
    found = table.check(OSLO, BONN)
    assert [clash.file_groups for clash in found.clashes] == [keys([OSLO])]
    assert not table.check(ROME).is_free
    table.serve(lines(OSLO, BONN))
    assert table.check(ROME).is_free
    # Met while it is written anew: what was read once stays read.
    table.serve(b"")
    assert table.clashes(BONN) == [OLDER]
    assert not table.check(ROME).is_free


def test_writer_counts_until_its_heartbeat_is_too_old(table: TableOnLake) -> None:
    table.begin(OLDER)
    table.serve(lines(OSLO))
    assert table.clashes(OSLO) == [OLDER]
    # As seen from ten minutes ahead; only HDFS lets anybody set a time.
    assert table.check(OSLO, ahead_ms=600_000).is_free
    table.put(f".heartbeat/{OLDER}")
    assert table.clashes(OSLO) == [OLDER]


def test_announced_file_groups_are_seen_before_the_first_marker(table: TableOnLake) -> None:
    table.begin(OLDER)
    assert table.check(OSLO).is_free
    table.put(f"{table.timeline}{OLDER}.deltacommit.inflight", commit_body([OSLO]))
    assert (table.clashes(OSLO), table.clashes(BONN)) == ([OLDER], [])


def test_reservations_are_refused_where_creation_is_not_exclusive(table: TableOnLake) -> None:
    with pytest.raises(ConfigError, match="local file system only"):
        Reservation(table.lake.open(table.path), YOUNGER)
