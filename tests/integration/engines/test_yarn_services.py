"""Services on a real YARN that no other test has there, and replication: each whole, as one task.

A second process reads with Hudi's own code what each has left. No service has to wait until the table is a day old: its
first writer lives 32 hours west of all others, and the files on HDFS get the times that it named them by.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hdfs_native import WriteOptions

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import (
    IndexingPolicy,
    LogCompactionPolicy,
    OrphanPolicy,
    SavepointPolicy,
    TtlPolicy,
)
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.planner.decide import service_options
from local_stack.writer_process import StandingWriter
from tests.integration.engines.stage import OPTIONS
from tests.integration.engines.yarn_stage import YarnStage

pytestmark = [pytest.mark.integration, pytest.mark.soak(covered_by="tests/integration/engines/test_yarn.py")]

WEST, EAST, EAST_OF_UTC = "GMT-18:00", "Etc/GMT-14", timedelta(hours=14)
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
POLICY = TablePolicy(
    indexing=IndexingPolicy(indexes=("record_index",), check="full"),
    savepoint=SavepointPolicy(every_s=60, keep=1),
    logcompaction=LogCompactionPolicy(enabled=True, log_files=2),
    orphans=OrphanPolicy(enabled=True, mode="quarantine", min_age_days=1),
    ttl=TtlPolicy(retained_days=1),
)
OWN = {**OPTIONS, "hoodie.metadata.global.record.level.index.min.filegroup.count": "2"}
TABLE = {"name": "orders", "type": "MOR", "version": 9, "keys": 400, "rows": 100}
# The fourth and the fifth commit have orders of all other cities.
FRESH = "city <> 'Bilbao'"
UNKNOWN_FILE = "00000000-bbbb-0_7-77-7"


class Served:
    """A table on HDFS, its services as tasks on YARN, and a writer that reads."""

    def __init__(self, stage: YarnStage, reader: StandingWriter, name: str) -> None:
        self.stage, self.reader, self.name = stage, reader, name
        self.path = stage.path_of(name)

    @property
    def folder(self) -> str:
        return f"{self.stage.folder}/lake/{self.name}"

    def serve(self, service: Service, mode: str = "execute") -> dict[str, Any]:
        """Run one service to its completion, in an application of its own; return what the task returned."""
        # As the manager answers: what services keep and remove is the tables file's, no run's own.
        self.stage.leases.policy["hudi_options"] = {**OWN, **service_options(service, POLICY)}
        run_id = f"{self.name}-{service}"
        asked = {"service": service, "mode": mode, "conflict": {"enabled": False}, "hudi_options": {}}
        task = self.stage.start_task(run_id, base_path=self.path, table_name=self.name, **asked)
        returned = self.stage.wait_for_task(task)
        assert returned["outcome"] == "completed", task.log_tail(80)
        application_id = self.stage.result(run_id).spark_application_id
        (app,) = [app for app in self.stage.yarn.applications(active=False) if app["id"] == application_id]
        assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
        assert app["amContainerLogs"] in self.stage.log_of(task)
        return returned

    def read(self, where: str = "") -> Mapping[str, Any]:
        return {**self.reader.read(self.path, where), "seconds": 0}

    def write(self, commit: int) -> None:
        """Update one order and add one, each in a city of its own."""
        self.reader.write({**TABLE, "rows": 1, "base_path": self.path}, commit, hudi_options=OWN)

    def files(self, folder: str = "") -> set[str]:
        """Return the paths below a folder of the table."""
        root = f"{self.folder}/{folder}".rstrip("/")
        entries = self.stage.store.list_status(root, recursive=True)
        return {entry.path.removeprefix(f"{root}/") for entry in entries if not entry.isdir}

    def age(self) -> None:
        """Give the files of the timeline the times that they are named by, and the writers' heartbeats an old one."""
        for name in self.stage.instants(self.name):
            if times := re.findall(r"\d{17}", name):
                self.set_time(f".hoodie/timeline/{name}", times[-1])
        for beat in self.files(".hoodie/.heartbeat"):
            self.set_time(f".hoodie/.heartbeat/{beat}", beat)

    def set_time(self, file: str, instant_time: str) -> None:
        then = datetime.strptime(f"{instant_time[:14]}+0000", "%Y%m%d%H%M%S%z") - EAST_OF_UTC
        ms = int(then.timestamp()) * 1000 + int(instant_time[14:])
        self.stage.store.set_times(f"{self.folder}/{file}", ms, ms)


@pytest.fixture
def served(stage: YarnStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A table that was written more than a day ago, whose writer was killed in its fourth commit."""
    # Of the tasks, spark-submit's JVM and the reader; a container gets nothing of it.
    monkeypatch.setenv("TZ", EAST)
    zones = {f"spark.{part}.extraJavaOptions": f"{QUICK} -Duser.timezone={EAST}" for part in ("driver", "executor")}
    monkeypatch.setattr(stage.leases, "policy", {"spark_conf": zones})
    reader = StandingWriter(tmp_path / "east")
    try:
        table = Served(stage, reader, "kept")
        write_in_the_west(table, tmp_path / "west")
        table.age()
        reader.wait_until_ready()
        yield table
    finally:
        reader.stop()


def write_in_the_west(table: Served, folder: Path) -> None:
    """Write three commits, and be killed in a fourth."""
    stage, source = table.stage, folder / "orders"
    writer = StandingWriter(folder, {"spark.driver.extraJavaOptions": f"{QUICK} -Duser.timezone={WEST}"})
    try:
        writer.wait_until_ready()
        for commit in range(3):
            writer.write({**TABLE, "base_path": str(source)}, commit)
        stage.copy_table(table.name, source)
        known = stage.instants(table.name)
        many = {**TABLE, "keys": 200_000, "base_path": table.path}
        writer.begin({"do": "write", "table": many, "commit": 0, "callback": None, "hudi_options": {}})
        # On HDFS an instant first has another name, which nothing rolls back.
        stage.wait_until(
            lambda: any(name.endswith(".inflight") for name in stage.instants(table.name) - known), "the write"
        )
    finally:
        writer.stop()


def test_rollback_index_build_savepoint_orphans_ttl_and_log_compaction_run_inside_yarn(served: Served) -> None:
    stage = served.stage
    before = served.read()
    (dead,) = {name.split(".")[0] for name in stage.instants("kept") if name.endswith(".deltacommit.inflight")} - {
        name.split("_")[0] for name in stage.instants("kept") if name.endswith(".deltacommit")
    }
    rolled_back = served.serve(Service.ROLLBACK)
    assert rolled_back["completed_instants"] == [dead]
    assert not [name for name in stage.instants("kept") if name.startswith(dead)]
    assert any(name.endswith(".rollback") for name in stage.instants("kept"))
    assert served.read() == before

    # Its writer goes on.
    served.write(3)
    before = served.read()
    assert before["rows"] == 421
    served.serve(Service.INDEXING, "schedule_and_execute")
    properties = stage.read_text("lake/kept/.hoodie/hoodie.properties")
    assert "record_index" in properties.partition("hoodie.table.metadata.partitions=")[2].splitlines()[0]
    assert served.read() == before
    # By the index: Hudi reads the files that it names.
    assert [served.read(f"id = {id}")["rows"] for id in (0, 399, 401, 411, 412)] == [1, 1, 1, 1, 0]
    served.write(4)
    before = served.read()
    assert served.read("id = 412")["rows"] == 1

    (saved,) = served.serve(Service.SAVEPOINT)["completed_instants"]
    assert [name for name in stage.instants("kept") if name.startswith(saved) and name.endswith(".savepoint")]

    bases = [file for file in served.files() if file.endswith(".parquet") and not file.startswith(".hoodie")]
    written_at, base = min((file.removesuffix(".parquet").rpartition("_")[2], file) for file in bases)
    orphan = f"{base.rpartition('/')[0]}/{UNKNOWN_FILE}_{int(written_at) + 1}.parquet"
    with stage.store.read(f"{served.folder}/{base}") as copied:
        content = copied.read()
    with stage.store.create(f"{served.folder}/{orphan}", WriteOptions()) as stream:
        stream.write(content)
    served.set_time(orphan, written_at)
    data = {file for file in served.files() if not file.startswith(".hoodie")}
    served.serve(Service.ORPHANS)
    assert {file for file in served.files() if not file.startswith(".hoodie")} == data - {orphan}
    assert [file for file in served.files(".hoodie/.aux/lake_quarantine") if file.endswith(orphan)]
    assert served.read() == before

    fresh = served.read(FRESH)
    assert 0 < fresh["rows"] < before["rows"]
    served.serve(Service.TTL)
    assert served.read() == fresh
    assert [served.read(f"id = {id}")["rows"] for id in (0, 1)] == [1, 0]

    # Last: the partitions of the log files that it writes are young again.
    (merged,) = served.serve(Service.LOGCOMPACTION, "schedule_and_execute")["completed_instants"]
    assert any(name.startswith(f"{merged}.logcompaction") for name in stage.instants("kept"))
    assert served.read() == fresh


def test_replication_in_client_mode_has_every_row_of_the_table_once(
    stage: YarnStage, reader: StandingWriter, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stage, "deploy_mode", "client")
    path, known = stage.copy_table("mirrored"), {app["id"] for app in stage.yarn.applications(active=False)}
    found = reader.read(path)
    options = {"path": str(tmp_path / "files")}
    # A run by hand would write below `[lake] sink_roots` alone.
    sink = {"sink": "file", "mode": "latest", "options": options, "is_claimed": True}
    task = stage.start_task("mirrored", base_path=path, table_name="mirrored", **sink)
    returned = stage.wait_for_task(task)
    assert returned["rows"] == found["rows"], task.log_tail(80)
    (app,) = [app for app in stage.yarn.applications(active=False) if app["id"] not in known]
    assert (app["state"], app["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    records: list[dict[str, Any]] = []
    for file in sorted((tmp_path / "files").glob("[0-9]*.jsonl")):
        *lines, _ = file.read_text(encoding="utf-8").splitlines()
        records += map(json.loads, lines)
    cents = round(sum(record["amount"] for record in records) * 100)
    assert (len(records), len({record["id"] for record in records}), cents) == (
        found["rows"], found["ids"], found["cents"]
    )  # fmt: skip
