"""Jobs that older versions of Hudi run: each is a spark-submit with that bundle, on a table that it wrote itself.

After each service the table is read with that version and with ours, and its writer writes on. Part of `make soak`,
which fetches the bundles. Index builds: test_indexing_next_to_older_hudi.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from conftest import run
from test_archive_on_hudi import COMPACTION_COUNTS_ONE, EAGER_ARCHIVE
from test_clean_on_hudi import KEEP_ONE_VERSION
from test_indexing_next_to_older_hudi import processes  # noqa: F401 - a fixture
from test_log_compaction_on_hudi import TWO_LOG_FILES
from test_older_writers_on_hudi import BeginTable, OlderTable, begin, kill_writer, templates  # noqa: F401 - fixtures
from test_orphans_on_hudi import base_files
from test_real_processes import result_of, submit  # noqa: F401 - a fixture

from airflow_lake_provider.job_contract import FailureKind, JobRequest, Mode, Outcome, Service, ServiceResult
from local_stack import hudi_bundle

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

pytestmark = pytest.mark.soak(covered_by="tests/unit/spark_jobs/test_hudi_versions.py")

RUNS, IS_REFUSED = "1.1.1", "1.0.2"
Submit = Callable[..., "subprocess.Popen[str]"]
Serve = Callable[..., ServiceResult]


@pytest.fixture(params=[RUNS])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def serve(submit: Submit, version: str) -> Serve:  # noqa: F811
    """Return a function that runs a request with the version's bundle, and requires that it completed something."""

    def serve(request: JobRequest) -> ServiceResult:
        process = submit(request, hudi_bundle.fetch(version))
        output, _ = process.communicate(timeout=480)
        assert process.returncode in (0, 1), output[-3000:]
        *_, result = result_of(request).services
        assert result.outcome in {Outcome.COMPLETED, Outcome.SCHEDULED}, result.message
        return result

    return serve


def of(older: OlderTable, service: Service, mode: Mode = Mode.SCHEDULE_AND_EXECUTE, **options: str) -> JobRequest:
    return older.table.request(mode, service=service, service_options=options)


def test_compaction(begin: BeginTable, serve: Serve, version: str) -> None:  # noqa: F811
    older = begin(version, "MOR")
    result = serve(of(older, Service.COMPACTION))
    assert set(result.completed_instants) == older.table.completed()
    older.require_going_on(version)


def test_log_compaction(begin: BeginTable, serve: Serve, version: str) -> None:  # noqa: F811
    older = begin(version, "MOR")
    serve(of(older, Service.LOGCOMPACTION, **TWO_LOG_FILES))
    older.require_going_on(version)


@pytest.mark.parametrize("type", ["MOR", "COW"])
def test_clustering(begin: BeginTable, serve: Serve, version: str, type: str) -> None:  # noqa: F811
    older = begin(version, type)
    serve(of(older, Service.CLUSTERING))
    older.require_going_on(version)


def test_clean_and_archive_with_the_metadata_tables_compaction(
    begin: BeginTable,  # noqa: F811
    serve: Serve,
    version: str,
) -> None:
    older = begin(version, "COW")
    files, instants = set(base_files(older.table)), older.table.files()
    serve(of(older, Service.CLEAN, **KEEP_ONE_VERSION))
    assert set(base_files(older.table)) < files
    older.require_going_on(version)
    serve(of(older, Service.METACOMPACTION, Mode.EXECUTE))
    serve(of(older, Service.ARCHIVE, Mode.EXECUTE, **(EAGER_ARCHIVE | COMPACTION_COUNTS_ONE)))
    assert not instants <= older.table.files()
    older.require_going_on(version)


def test_rollback(begin: BeginTable, serve: Serve, version: str, tmp_path: Path) -> None:  # noqa: F811
    older = begin(version, "COW")
    dead = kill_writer(older, version, tmp_path)
    assert serve(of(older, Service.ROLLBACK, Mode.EXECUTE)).completed_instants == (dead,)
    older.require_going_on(version)


def test_savepoint(begin: BeginTable, serve: Serve, version: str) -> None:  # noqa: F811
    older = begin(version, "COW")
    for _ in range(2):
        serve(of(older, Service.SAVEPOINT, Mode.EXECUTE, **{"lake.savepoint.keep": "1"}))
        assert len(older.table.completed("savepoint")) == 1
        older.require_going_on(version)


def test_plan_of_an_older_job_is_executed_by_ours(begin: BeginTable, serve: Serve, version: str) -> None:  # noqa: F811
    """A worker is upgraded between two tries of a run."""
    older = begin(version, "MOR")
    (plan,) = serve(of(older, Service.COMPACTION, Mode.SCHEDULE)).scheduled_instants
    result = run(older.spark, older.table.request(Mode.EXECUTE, plan))
    assert (result.outcome, result.completed_instants) == (Outcome.COMPLETED, (plan,)), result.message
    older.require_going_on(version)


def test_hudi_whose_lock_cannot_be_held_is_refused_by_every_service_before_anything_is_touched(
    begin: BeginTable,  # noqa: F811
    submit: Submit,  # noqa: F811
) -> None:
    older = begin(IS_REFUSED, "MOR")
    before = older.table.files()
    asked = [of(older, service, Mode.EXECUTE).services[0] for service in Service]
    request = replace(of(older, Service.CLEAN), services=tuple(asked))
    process = submit(request, hudi_bundle.fetch(IS_REFUSED))
    output, _ = process.communicate(timeout=480)
    assert process.returncode in (0, 1), output[-3000:]
    results = result_of(request).services
    assert len(results) == len(Service)
    for result in results:
        assert (result.outcome, result.failure_kind) == (Outcome.FAILED, FailureKind.REFUSED), result.message
        assert "services cannot run with Hudi 1.0.2" in result.message
    assert older.table.files() == before
    older.require_going_on(IS_REFUSED)
