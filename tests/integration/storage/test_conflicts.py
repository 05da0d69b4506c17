"""Early conflict detection on tables that lie on HDFS and on an S3-compatible store, in both timeline layouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_lake_provider.conflict.activity import ConflictTable
from airflow_lake_provider.conflict.claims import LOCK_FOLDER, Reservation, ReservedError
from airflow_lake_provider.conflict.contention import ClashCheck, WriteIntent
from airflow_lake_provider.conflict.strategies import StrategySettings, make_strategy
from airflow_lake_provider.errors import ConfigError
from airflow_lake_provider.hudi.active_writes import MarkerKind
from airflow_lake_provider.timeline_server.views import FileSystemTimelineView
from local_stack.processes import wait_until
from tests.integration.storage.lakes import CLOUDS, MOTO, Lake, upload
from tests.support.fixture_tables import unpack
from tests.unit.conflict.fake_table import commit_body, keys, marker

PATIENCE_S = 60.0
OLDER, YOUNGER = "20991231000000001", "20991231000000002"
OSLO, BONN, ROME = ("city=Oslo", "f1-0"), ("city=Bonn", "f2-0"), ("event_date=2026-01-02", "f3-0")


class TableOnLake:
    """A real table of one layout, and writers whose files are put there as Hudi names them."""

    def __init__(self, lake: Lake, layout: str, test: str, folder: Path) -> None:
        self.lake = lake
        self.path = f"/conflicts/{test}/mor_{layout}"
        upload(lake, unpack(f"mor_{layout}", folder).path, self.path)
        self.timeline = "" if layout == "v6" else "timeline/"
        self.opened = self.open()
        self.settings = StrategySettings(reserve=lambda instant: Reservation(lake.open(self.path), instant))

    def open(self) -> ConflictTable:
        storage = self.lake.open(self.path)
        view = FileSystemTimelineView(self.path, lambda _: storage)
        return ConflictTable(storage, view.snapshot)

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

    def lock_entries(self) -> list[str]:
        try:
            return self.lake.open(self.path).list_names(LOCK_FOLDER)
        except FileNotFoundError:
            return []

    def check(self, *groups: tuple[str, str], ahead_ms: int = 0) -> ClashCheck:
        """Compare the younger writer's claim."""
        intent = WriteIntent(YOUNGER, keys(list(groups)), since=YOUNGER)
        return self.opened.check(intent, now_ms() + ahead_ms)

    def clashes(self, *groups: tuple[str, str], ahead_ms: int = 0) -> list[str]:
        return [clash.instant for clash in self.check(*groups, ahead_ms=ahead_ms).clashes]


def now_ms() -> int:
    return int(time.time() * 1000)


def until_certain(check: Callable[[], ClashCheck]) -> ClashCheck:
    """Ask again as long as the answer is neither yes nor no."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not ((verdict := check()).is_free or verdict.clashes):
        assert time.monotonic() < deadline_s, verdict
    return verdict


def lines(*groups: tuple[str, str]) -> bytes:
    return "".join(f"{marker(OLDER, *group)}\n" for group in groups).encode()


@pytest.fixture(params=["v6", "v9"])
def table(request: pytest.FixtureRequest, lake: Lake, tmp_path: Path) -> TableOnLake:
    return TableOnLake(lake, request.param, request.node.name, tmp_path)


@pytest.fixture(params=["hdfs", MOTO])
def claimed_lake(request: pytest.FixtureRequest) -> Lake:
    """A store on which file groups can be reserved; gofakes3 takes nothing in chunks, as pyarrow sends it."""
    found: Lake = request.getfixturevalue(f"{request.param}_lake")
    return found


@pytest.fixture
def claimed(request: pytest.FixtureRequest, claimed_lake: Lake, tmp_path: Path) -> TableOnLake:
    """Claims do not depend on the layout."""
    return TableOnLake(claimed_lake, "v9", request.node.name, tmp_path)


def test_direct_markers_are_seen_as_they_come_and_forgotten_with_their_folder(table: TableOnLake) -> None:
    table.begin(OLDER)
    assert table.check(OSLO, BONN).is_free
    table.put(f".temp/{OLDER}/{marker(OLDER, *OSLO)}")
    assert (table.clashes(OSLO, BONN), table.clashes(BONN, ROME)) == ([OLDER], [])
    table.put(f".temp/{OLDER}/{marker(OLDER, *BONN, is_log=True)}")
    table.put(f".temp/{OLDER}/{marker(OLDER, *ROME)}")
    assert [table.clashes(group) for group in (OSLO, BONN, ROME)] == [[OLDER]] * 3
    (writer,) = table.opened.read_activity(now_ms()).live_writers()
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
    # Met while it is written again: what was read once stays read.
    table.serve(b"")
    assert table.clashes(BONN) == [OLDER]
    assert not table.check(ROME).is_free


def test_writer_counts_until_its_heartbeat_is_too_old(table: TableOnLake) -> None:
    table.begin(OLDER)
    table.serve(lines(OSLO))
    assert table.clashes(OSLO) == [OLDER]
    # As seen from ten minutes ahead; only HDFS lets a client set a time.
    assert table.check(OSLO, ahead_ms=600_000).is_free
    table.put(f".heartbeat/{OLDER}")
    assert table.clashes(OSLO) == [OLDER]


def test_announced_file_groups_are_seen_before_the_first_marker(table: TableOnLake) -> None:
    table.begin(OLDER)
    assert table.check(OSLO).is_free
    table.put(f"{table.timeline}{OLDER}.deltacommit.inflight", commit_body([OSLO]))
    assert (table.clashes(OSLO), table.clashes(BONN)) == ([OLDER], [])


ROUNDS = 3
CLAIMANTS = tuple(f"2099123100000001{n}" for n in range(4))


def test_one_of_several_claims_on_a_file_group_wins(claimed: TableOnLake) -> None:
    with ThreadPoolExecutor(len(CLAIMANTS)) as pool:
        for n in range(ROUNDS):
            group, together = ("city=Oslo", f"f{n}-0"), threading.Barrier(len(CLAIMANTS))

            def intent(
                instant: str, group: tuple[str, str] = group, together: threading.Barrier = together
            ) -> ClashCheck:
                opened, strategy = claimed.open(), make_strategy("SimpleTransactionDirectMarkerBased", claimed.settings)
                together.wait(PATIENCE_S)
                return until_certain(lambda: strategy.check(opened, WriteIntent(instant, keys([group])), now_ms()))

            verdicts = dict(zip(CLAIMANTS, pool.map(intent, CLAIMANTS), strict=True))
            (winner,) = [instant for instant, verdict in verdicts.items() if verdict.is_free]
            losers = [verdict for instant, verdict in verdicts.items() if instant != winner]
            assert [[clash.instant for clash in verdict.clashes] for verdict in losers] == [[winner]] * len(losers)
    assert not claimed.lock_entries()


def test_reservation_is_seen_until_it_is_released(claimed: TableOnLake) -> None:
    mine = make_strategy("SimpleTransactionDirectMarkerBased", claimed.settings)
    for _ in range(2):  # the second time its own markers are no obstacle
        assert mine.check(claimed.opened, WriteIntent(OLDER, keys([OSLO, ROME])), now_ms()).is_free
    assert (claimed.clashes(ROME), claimed.clashes(BONN)) == ([OLDER], [])
    Reservation(claimed.lake.open(claimed.path), OLDER).release()
    assert claimed.check(OSLO, ROME).is_free
    Reservation(claimed.lake.open(claimed.path), OLDER).release()


@pytest.fixture(params=CLOUDS)
def cloud(request: pytest.FixtureRequest) -> Lake:
    found: Lake = request.getfixturevalue(f"{request.param}_lake")
    return found


def test_store_without_one_order_of_claims_is_refused(cloud: Lake, tmp_path: Path) -> None:
    table = TableOnLake(cloud, "v9", "refused", tmp_path)
    with pytest.raises(ConfigError, match="can be reserved on a local file system, HDFS and S3 only"):
        Reservation(cloud.open(table.path), OLDER)


def test_lock_of_a_dead_owner_is_passed_by(claimed: TableOnLake) -> None:
    storage = claimed.lake.open(claimed.path)
    with Reservation(storage, OLDER).lock(keys([OSLO])) as dead:
        with pytest.raises(ReservedError), Reservation(storage, YOUNGER).lock(keys([OSLO])):
            pass

        def take() -> bool:
            try:
                with Reservation(storage, YOUNGER).lock(keys([OSLO]), expires_ms=500) as taken:
                    return taken.is_held() and not dead.is_held()
            except ReservedError:
                return False

        wait_until(take, PATIENCE_S, "the age at which a lock counts no more")
    assert not claimed.lock_entries()
