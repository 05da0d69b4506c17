"""Replication whose driver runs inside a real YARN: a real PostgreSQL counts what it got, whatever was killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sqlalchemy import create_engine

from airflow_lake_provider.hudi.base_path import table_id_of
from local_stack.postgres import LocalPostgres, find_programs
from local_stack.processes import PATIENCE
from local_stack.writer_process import StandingWriter
from tests.integration.engines.mirror import CHANGES, Mirror, connection_of, left_of_mirrors, time_of_first
from tests.integration.engines.yarn_stage import YarnStage

pytestmark = [
    pytest.mark.integration,
    pytest.mark.soak(covered_by="tests/unit/execution/test_job_run.py"),
    pytest.mark.skipif(find_programs() is None, reason="no PostgreSQL: run `python -m local_stack.postgres`"),
]


@dataclass
class MirrorOfYarn(Mirror):
    """What its runs leave on YARN."""

    stage: YarnStage

    def running(self) -> dict[str, Any]:
        (app,) = self.stage.yarn.applications()
        return app

    def outcome(self, application_id: str) -> str:
        (app,) = [app for app in self.stage.yarn.applications(active=False) if app["id"] == application_id]
        return str(app["finalStatus"])

    def require_once(self) -> None:
        """Require each change once; nothing runs, and nothing is left."""
        self.require_rows_once()
        self.stage.wait_until(lambda: not self.stage.yarn.applications(), "the end of all applications", 60)
        for app in self.stage.yarn.applications(active=False):
            self.stage.wait_until(lambda app=app: not self.stage.containers(app["id"]), "the end of containers", 60)
        files = self.stage.store.list_status(f"{self.stage.folder}/work", recursive=True)
        assert not left_of_mirrors(entry.path for entry in files)


@pytest.fixture(scope="module")
def filled(stage: YarnStage, reader: StandingWriter) -> Iterator[MirrorOfYarn]:
    server = LocalPostgres()
    server.start()
    database = create_engine(server.url)
    try:
        stage.connections["mirror"] = connection_of(server)
        path = stage.copy_table("mirrored")
        seek_until = time_of_first(stage.instants("mirrored"))
        mirror = MirrorOfYarn(stage, database, path, seek_until, reader.read(path))
        mirror.fill()
        yield mirror
    finally:
        stage.connections.clear()
        database.dispose()
        server.stop()


@pytest.fixture
def mirror(filled: MirrorOfYarn) -> MirrorOfYarn:
    filled.execute("truncate counted")
    return filled


def test_mirror_gets_each_change_once_although_a_driver_and_a_worker_are_killed(
    stage: YarnStage, mirror: MirrorOfYarn
) -> None:
    # The driver's JVM, between two transactions or within one.
    first = mirror.seek("killed")
    mirror.wait_for_rows(0, first)
    mirror.require_no_password()
    died = mirror.running()["id"]
    for process in stage.master_processes(mirror.running()):
        if process.name() == "java":
            process.kill()
    first.process.wait(timeout=240 * PATIENCE)
    log = stage.log_of(first)
    assert "RETURNED {" not in log
    assert f"died: YARN application {died} ended as FAILED" in log, log[-4000:]

    # The worker of the next try: its driver goes on, and the try after it follows that one.
    durable = mirror.counted()
    assert 0 < durable < CHANGES
    second = mirror.seek("killed", 2)
    mirror.wait_for_rows(durable, second)
    inside = mirror.running()["id"]
    os.kill(second.process.pid, signal.SIGKILL)
    second.process.wait()
    third = mirror.seek("killed", 3)
    returned = stage.wait_for_task(third)
    follows = f"this try follows lake-replicate-{table_id_of(mirror.path)}.mirror of an earlier try: {inside}"
    assert follows in stage.log_of(third)
    # What the followed driver sent, which began where the one before it had ended.
    assert returned["rows"] == CHANGES - durable
    assert (mirror.outcome(died), mirror.outcome(inside)) == ("FAILED", "SUCCEEDED")
    mirror.require_once()


def test_run_that_takes_the_sink_over_ends_the_driver_that_it_finds(stage: YarnStage, mirror: MirrorOfYarn) -> None:
    first = mirror.seek("left")
    mirror.wait_for_rows(0, first)
    left = mirror.running()["id"]
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    other = mirror.start("other")
    stage.wait_for_task(other)
    # A driver that YARN ends may report its own end first.
    assert mirror.outcome(left) in {"KILLED", "FAILED"}
    assert "this try ends lake-replicate-" in stage.log_of(other)
    mirror.require_once()


def test_cleared_run_ends_its_driver_and_the_next_try_goes_on(stage: YarnStage, mirror: MirrorOfYarn) -> None:
    first = mirror.seek("cleared")
    mirror.wait_for_rows(0, first)
    ended = mirror.running()["id"]
    os.kill(first.process.pid, signal.SIGTERM)
    first.process.wait(timeout=120 * PATIENCE)
    assert not stage.yarn.applications()
    assert mirror.outcome(ended) in {"KILLED", "FAILED"}
    stage.wait_for_task(mirror.seek("cleared", 2))
    mirror.require_once()
