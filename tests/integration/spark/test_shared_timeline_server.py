"""Stock readers and writers whose shared timeline server (Hudi's own) is killed, or stands still, in the middle."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import MakeTable, Table
from held_writers import start_writer_of
from pyspark.sql import functions as F

from local_stack import hudi_bundle, lake_writer
from local_stack.processes import ServerProcess, accepts_connections, free_port, pause, resume, start, wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.soak(covered_by="tests/integration/timeline_server/test_stream.py")

SERVICE = Path(__file__).parent / "SharedTimelineServer.java"
TIMEOUT_S = 3
Rows = dict[str, float]


class SharedServer:
    """Hudi's timeline server as a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        jars = f"{hudi_bundle.JAR}:{hudi_bundle.find_spark_home() / 'jars' / '*'}"
        command = ["java", "-Xmx256m", *hudi_bundle.QUICK_JVM.split(), "-cp", jars, str(SERVICE), str(self.port)]
        self.process: ServerProcess = start("timeline-server", command, folder / "timeline_server.log")
        wait_until(lambda: accepts_connections(self.port), 60, "timeline server", [self.process])

    def options(self) -> dict[str, str]:
        """Return what has a client ask it first; by default it waits 300 s for each answer."""
        return {
            "hoodie.embed.timeline.server": "false",
            "hoodie.filesystem.view.type": "REMOTE_FIRST",
            "hoodie.filesystem.view.remote.host": "127.0.0.1",
            "hoodie.filesystem.view.remote.port": str(self.port),
            "hoodie.filesystem.view.remote.timeout.secs": str(TIMEOUT_S),
            "hoodie.write.markers.type": "DIRECT",
        }

    def kill(self) -> None:
        self.process.kill()

    def stand_still(self) -> None:
        pause(self.process.process.pid, 60.0)

    def end(self) -> None:
        if self.process.alive():
            resume(self.process.process.pid)
            self.process.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SharedServer]:
    shared = SharedServer(tmp_path)
    yield shared
    shared.end()


AWAY = pytest.mark.parametrize("go_away", [SharedServer.kill, SharedServer.stand_still], ids=["killed", "stopped"])


def rows_of(orders: DataFrame) -> Rows:
    return {row.id: row.amount for row in orders.select("id", "amount").collect()}


def scan(spark: SparkSession, table: Table) -> Rows:
    """Return the rows by a reader without metadata table and server."""
    return rows_of(spark.read.format("hudi").option("hoodie.metadata.enable", "false").load(str(table.path)))


@AWAY
def test_writer_goes_on_and_is_right(
    spark: SparkSession,
    make_table: MakeTable,
    tmp_path: Path,
    server: SharedServer,
    go_away: Callable[[SharedServer], None],
) -> None:
    table = make_table()
    expected = scan(spark, table)
    orders = lake_writer.orders_of_commit(spark, table.written, table.written.commits)

    def write(number: int, leave: bool) -> float:
        new = orders.withColumn("amount", F.lit(number + 0.5)).withColumn("ts", F.lit(100 + number).cast("long"))
        writer = start_writer_of(new, table, tmp_path / f"writer-{number}", server.options())
        if leave:
            assert server.process.alive()
            go_away(server)
        released = time.monotonic()
        assert writer.release() == ""
        expected.update(rows_of(new))
        return time.monotonic() - released

    write(0, leave=False)
    assert scan(spark, table) == expected
    commit_s = write(1, leave=True)  # it has written its files, and commits without the server
    assert scan(spark, table) == expected
    begun = time.monotonic()
    write(2, leave=False)  # it meets no server from its start on
    write_s = time.monotonic() - begun
    print(f"a commit without the server took {commit_s:.1f} s, a write {write_s:.1f} s")
    if go_away is SharedServer.stand_still:
        assert write_s > TIMEOUT_S, "it has asked the server"
    assert scan(spark, table) == expected


@AWAY
def test_reader_goes_on_and_is_right(
    spark: SparkSession,
    make_table: MakeTable,
    server: SharedServer,
    go_away: Callable[[SharedServer], None],
) -> None:
    table = make_table()
    expected = scan(spark, table)

    def read(**more: str) -> DataFrame:
        return spark.read.format("hudi").options(**server.options(), **more).load(str(table.path))

    rows = read().select("id", "amount").toLocalIterator()
    found = {row.id: row.amount for row in [next(rows)]}
    assert server.process.alive()
    go_away(server)
    found |= {row.id: row.amount for row in rows}
    assert found == expected
    assert rows_of(read()) == expected
    assert rows_of(read(**{"hoodie.metadata.enable": "false"})) == expected
