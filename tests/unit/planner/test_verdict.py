"""G3: the timeline judges, whatever the job said."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_lake_provider.errors import DamagedFileError, HalfMovedError, WriterUnguardedError
from airflow_lake_provider.hudi.timeline import Timeline
from airflow_lake_provider.job_contract import (
    UPGRADE_MARK,
    FailureKind,
    Mode,
    Outcome,
    Service,
    ServiceRequest,
    ServiceResult,
    UpgradeMark,
    to_json,
)
from airflow_lake_provider.planner.verdict import TableReader, UpgradedTableReader, judge
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.storage.table_storage import open_storage
from tests.support.tables import HandMadeTable
from tests.unit.planner.views import at, completed, pending

EMPTY = Timeline((completed(1),))
PLANNED = Timeline((completed(1), pending(5, Action.COMPACTION)))
COMPACTED = Timeline((completed(1), completed(5, Action.COMMIT)))
BOTH = Mode.SCHEDULE_AND_EXECUTE


def said(outcome: Outcome, *, scheduled: tuple[str, ...] = (), done: tuple[str, ...] = ()) -> ServiceResult:
    return ServiceResult(Service.COMPACTION, outcome, scheduled, done, message="as the job said")


@pytest.mark.parametrize(
    ("before", "after", "mode", "result", "outcome"),
    [
        pytest.param(
            EMPTY,
            COMPACTED,
            BOTH,
            said(Outcome.COMPLETED, scheduled=(at(5),), done=(at(5),)),
            Outcome.COMPLETED,
            id="done",
        ),
        pytest.param(
            EMPTY,
            PLANNED,
            BOTH,
            said(Outcome.COMPLETED, scheduled=(at(5),), done=(at(5),)),
            Outcome.FAILED,
            id="job-lies",
        ),
        pytest.param(PLANNED, COMPACTED, BOTH, None, Outcome.COMPLETED, id="driver-died-after-completing"),
        pytest.param(
            PLANNED, COMPACTED, Mode.EXECUTE, said(Outcome.FAILED), Outcome.COMPLETED, id="failed-but-completed"
        ),
        pytest.param(PLANNED, PLANNED, Mode.EXECUTE, None, Outcome.FAILED, id="driver-died-before"),
        pytest.param(EMPTY, EMPTY, BOTH, None, Outcome.FAILED, id="died-before-planning"),
        pytest.param(EMPTY, PLANNED, BOTH, None, Outcome.FAILED, id="died-after-planning"),
        pytest.param(EMPTY, EMPTY, BOTH, said(Outcome.NOTHING_TO_DO), Outcome.NOTHING_TO_DO, id="nothing-to-do"),
        pytest.param(
            EMPTY,
            PLANNED,
            Mode.SCHEDULE,
            said(Outcome.SCHEDULED, scheduled=(at(5),)),
            Outcome.SCHEDULED,
            id="scheduled",
        ),
        pytest.param(EMPTY, PLANNED, Mode.SCHEDULE, None, Outcome.SCHEDULED, id="died-after-scheduling"),
        pytest.param(
            EMPTY, EMPTY, Mode.SCHEDULE, said(Outcome.SCHEDULED, scheduled=(at(5),)), Outcome.FAILED, id="plan-missing"
        ),
    ],
)
def test_judge(before: Timeline, after: Timeline, mode: Mode, result: ServiceResult | None, outcome: Outcome) -> None:
    verdict = judge(before, after, ServiceRequest(Service.COMPACTION, mode), result)
    assert verdict.outcome is outcome
    assert verdict.done is (outcome is not Outcome.FAILED)


def test_judge_of_named_plans_needs_each_of_them() -> None:
    request = ServiceRequest(Service.COMPACTION, Mode.EXECUTE, (at(5), at(7)))
    verdict = judge(PLANNED, COMPACTED, request, None)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.completed_instants == (at(5),)
    assert at(7) in verdict.reason


def test_judge_of_a_killed_driver_names_the_plan_that_it_began() -> None:
    request = ServiceRequest(Service.COMPACTION, BOTH)
    verdict = judge(EMPTY, PLANNED, request, None)
    assert verdict.outcome is Outcome.FAILED
    assert verdict.reason == f"plan {at(5)} was begun and not completed; the job died without a result"
    assert judge(PLANNED, PLANNED, request, None).reason.startswith(f"plan {at(5)} is not completed on the timeline")
    assert judge(EMPTY, EMPTY, request, None).reason.startswith("no plan of this run is on the timeline")


def test_judge_that_failed_keeps_the_jobs_kind_and_words() -> None:
    result = ServiceResult(
        Service.COMPACTION, Outcome.FAILED, failure_kind=FailureKind.LOCK, message="no lock within 60 s"
    )
    verdict = judge(EMPTY, EMPTY, ServiceRequest(Service.COMPACTION, BOTH), result)
    assert verdict.failure_kind is FailureKind.LOCK
    assert "no lock within 60 s" in verdict.reason


ARCHIVED = Timeline((completed(3), completed(5)))
LONG = Timeline((completed(1), completed(3), completed(5)))


@pytest.mark.parametrize(
    ("before", "after", "result", "outcome", "text"),
    [
        pytest.param(LONG, ARCHIVED, Outcome.COMPLETED, Outcome.COMPLETED, "1 instants left", id="moved"),
        pytest.param(LONG, LONG, Outcome.COMPLETED, Outcome.NOTHING_TO_DO, "as the job said", id="job-lies"),
        pytest.param(LONG, ARCHIVED, Outcome.FAILED, Outcome.FAILED, "1 instants left", id="failed-after-moving"),
        pytest.param(LONG, ARCHIVED, None, Outcome.FAILED, "died without a result", id="died"),
    ],
)
def test_archive_is_judged_by_what_left_the_active_timeline(
    before: Timeline, after: Timeline, result: Outcome | None, outcome: Outcome, text: str
) -> None:
    request = ServiceRequest(Service.ARCHIVE, Mode.EXECUTE)
    word = None if result is None else ServiceResult(Service.ARCHIVE, result, message="as the job said")
    verdict = judge(before, after, request, word)
    assert (verdict.outcome, text in verdict.reason) == (outcome, True)


@pytest.mark.parametrize(
    ("service", "planned_as", "completed_as"),
    [
        (Service.COMPACTION, Action.COMPACTION, Action.COMMIT),
        (Service.CLUSTERING, Action.CLUSTERING, Action.REPLACECOMMIT),
        (Service.CLEAN, Action.CLEAN, Action.CLEAN),
        (Service.LOGCOMPACTION, Action.LOGCOMPACTION, Action.DELTACOMMIT),
        (Service.INDEXING, Action.INDEXING, Action.INDEXING),
        # On the metadata table's timeline.
        (Service.METACOMPACTION, Action.COMPACTION, Action.COMMIT),
    ],
)
def test_planned_service_is_judged_by_its_own_action(
    service: Service, planned_as: Action, completed_as: Action
) -> None:
    planned = Timeline((completed(1), pending(5, planned_as)))
    done = Timeline((completed(1), completed(5, completed_as)))
    request = ServiceRequest(service, Mode.EXECUTE)
    assert judge(planned, done, request, None).outcome is Outcome.COMPLETED
    assert judge(planned, planned, request, None).outcome is Outcome.FAILED


WRITE = pending(5, Action.COMMIT, State.INFLIGHT)
DEAD = Timeline((completed(1), WRITE))
ROLLED_BACK = Timeline((completed(1), completed(9, Action.ROLLBACK)))
WENT_ON = Timeline((completed(1), completed(5, Action.COMMIT)))


@pytest.mark.parametrize(
    ("before", "after", "instants", "result", "outcome"),
    [
        pytest.param(DEAD, ROLLED_BACK, (at(5),), None, Outcome.COMPLETED, id="driver-died-after-it"),
        pytest.param(DEAD, ROLLED_BACK, (), Outcome.COMPLETED, Outcome.COMPLETED, id="by-hand"),
        pytest.param(DEAD, DEAD, (at(5),), Outcome.COMPLETED, Outcome.FAILED, id="job-lies"),
        pytest.param(DEAD, DEAD, (at(5),), None, Outcome.FAILED, id="died-before"),
        pytest.param(DEAD, DEAD, (), Outcome.NOTHING_TO_DO, Outcome.NOTHING_TO_DO, id="by-hand-and-alive"),
        pytest.param(DEAD, DEAD, (), None, Outcome.FAILED, id="by-hand-and-died"),
        # It lived after all, and holds nothing up any more.
        pytest.param(DEAD, WENT_ON, (at(5),), Outcome.FAILED, Outcome.NOTHING_TO_DO, id="went-on"),
    ],
)
def test_rollback_is_judged_by_what_is_no_longer_pending(
    before: Timeline, after: Timeline, instants: tuple[str, ...], result: Outcome | None, outcome: Outcome
) -> None:
    word = None if result is None else ServiceResult(Service.ROLLBACK, result)
    verdict = judge(before, after, ServiceRequest(Service.ROLLBACK, Mode.EXECUTE, instants), word)
    assert verdict.outcome is outcome
    assert verdict.completed_instants == ((at(5),) if outcome is Outcome.COMPLETED else ())


HALF = Timeline((completed(1), pending(9, Action.ROLLBACK, State.INFLIGHT)))


@pytest.mark.parametrize(
    ("after", "result", "outcome"),
    [
        pytest.param(ROLLED_BACK, Outcome.COMPLETED, Outcome.COMPLETED, id="ended"),
        pytest.param(ROLLED_BACK, None, Outcome.COMPLETED, id="driver-died-after-it"),
        pytest.param(HALF, Outcome.COMPLETED, Outcome.FAILED, id="job-lies"),
    ],
)
def test_rollback_that_was_begun_is_judged_by_its_own_completion(
    after: Timeline, result: Outcome | None, outcome: Outcome
) -> None:
    word = None if result is None else ServiceResult(Service.ROLLBACK, result)
    verdict = judge(HALF, after, ServiceRequest(Service.ROLLBACK, Mode.EXECUTE, (at(9),)), word)
    assert verdict.outcome is outcome
    assert verdict.completed_instants == ((at(9),) if outcome is Outcome.COMPLETED else ())


DELETED = Timeline((completed(1), completed(5, Action.REPLACECOMMIT)))


@pytest.mark.parametrize(
    ("after", "result", "done", "outcome"),
    [
        pytest.param(DELETED, Outcome.COMPLETED, (at(5),), Outcome.COMPLETED, id="done"),
        pytest.param(EMPTY, Outcome.COMPLETED, (at(5),), Outcome.FAILED, id="job-lies"),
        pytest.param(EMPTY, Outcome.NOTHING_TO_DO, (), Outcome.NOTHING_TO_DO, id="none-expired"),
        pytest.param(DELETED, None, (), Outcome.FAILED, id="died"),
        pytest.param(EMPTY, Outcome.FAILED, (), Outcome.FAILED, id="failed"),
    ],
)
def test_deletion_of_partitions_is_judged_by_its_own_commit(
    after: Timeline, result: Outcome | None, done: tuple[str, ...], outcome: Outcome
) -> None:
    word = None if result is None else ServiceResult(Service.TTL, result, completed_instants=done)
    assert judge(EMPTY, after, ServiceRequest(Service.TTL, Mode.EXECUTE), word).outcome is outcome


SAVED, RESAVED = (Timeline((completed(1), completed(second, Action.SAVEPOINT))) for second in (1, 2))


@pytest.mark.parametrize(
    ("before", "after", "result", "done", "outcome"),
    [
        pytest.param(EMPTY, SAVED, Outcome.COMPLETED, (at(1),), Outcome.COMPLETED, id="made"),
        pytest.param(SAVED, RESAVED, Outcome.COMPLETED, (at(2),), Outcome.COMPLETED, id="made-and-removed"),
        pytest.param(SAVED, EMPTY, Outcome.COMPLETED, (), Outcome.COMPLETED, id="removed"),
        pytest.param(EMPTY, EMPTY, Outcome.COMPLETED, (at(1),), Outcome.FAILED, id="job-lies"),
        pytest.param(SAVED, SAVED, Outcome.NOTHING_TO_DO, (), Outcome.NOTHING_TO_DO, id="nothing-new"),
        pytest.param(EMPTY, SAVED, None, (), Outcome.FAILED, id="died"),
    ],
)
def test_savepoints_are_judged_by_the_timeline(
    before: Timeline, after: Timeline, result: Outcome | None, done: tuple[str, ...], outcome: Outcome
) -> None:
    word = None if result is None else ServiceResult(Service.SAVEPOINT, result, completed_instants=done)
    assert judge(before, after, ServiceRequest(Service.SAVEPOINT, Mode.EXECUTE), word).outcome is outcome


@pytest.mark.parametrize("result", [None, Outcome.FAILED, Outcome.COMPLETED, Outcome.NOTHING_TO_DO])
def test_search_for_orphan_files_is_done_when_its_job_says_so(result: Outcome | None) -> None:
    """It leaves no instant: the quarantine's manifest is its record."""
    word = None if result is None else ServiceResult(Service.ORPHANS, result, message="2 orphan files")
    verdict = judge(EMPTY, EMPTY, ServiceRequest(Service.ORPHANS, Mode.EXECUTE), word)
    assert verdict.outcome is (result or Outcome.FAILED)
    assert result is None or "2 orphan files" in verdict.reason


RESTORED = Timeline((completed(1), completed(1, Action.SAVEPOINT), completed(7, Action.RESTORE)))
RESTORING = Timeline((completed(1), completed(1, Action.SAVEPOINT), pending(7, Action.RESTORE)))


@pytest.mark.parametrize(
    ("after", "result", "done", "outcome"),
    [
        pytest.param(RESTORED, Outcome.COMPLETED, (at(7),), Outcome.COMPLETED, id="restored"),
        pytest.param(RESTORED, Outcome.FAILED, (), Outcome.FAILED, id="rows-differ"),
        pytest.param(RESTORED, None, (), Outcome.FAILED, id="died-before-it-compared"),
        pytest.param(RESTORING, None, (), Outcome.FAILED, id="died"),
        pytest.param(RESTORING, Outcome.COMPLETED, (at(7),), Outcome.FAILED, id="job-lies"),
        pytest.param(SAVED, Outcome.COMPLETED, (at(7),), Outcome.FAILED, id="no-restore"),
        pytest.param(RESTORED, Outcome.COMPLETED, (), Outcome.FAILED, id="names-none"),
    ],
)
def test_restore_is_judged_by_the_timeline(
    after: Timeline, result: Outcome | None, done: tuple[str, ...], outcome: Outcome
) -> None:
    word = None if result is None else ServiceResult(Service.SAVEPOINT, result, completed_instants=done)
    request = ServiceRequest(Service.SAVEPOINT, Mode.RESTORE, (at(1),))
    assert judge(SAVED, after, request, word).outcome is outcome


@pytest.mark.parametrize("outcome", [Outcome.COMPLETED, Outcome.NOTHING_TO_DO, Outcome.FAILED, None])
def test_change_of_the_version_is_judged_by_its_report(outcome: Outcome | None) -> None:
    """The operator compares the version itself."""
    word = None if outcome is None else ServiceResult(Service.SAVEPOINT, outcome)
    verdict = judge(SAVED, SAVED, ServiceRequest(Service.SAVEPOINT, Mode.UPGRADE), word)
    assert verdict.outcome is (outcome or Outcome.FAILED)


def test_half_moved_timeline_is_left_to_the_change(tmp_path: Path) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    properties = table.path / ".hoodie" / "hoodie.properties"
    text = properties.read_text().replace("hoodie.table.version=9", "hoodie.table.version=6")
    properties.write_text(text.replace("hoodie.timeline.layout.version=2", "hoodie.timeline.layout.version=1"))
    (table.path / ".hoodie/timeline" / f"{at(1)}_{at(2)}.commit").touch()
    assert UpgradedTableReader(str(table.path), open_storage).timeline() == Timeline()
    mark = UpgradeMark(6, 9, (), 0, 0, (), "")
    (table.path / UPGRADE_MARK).parent.mkdir(exist_ok=True)
    (table.path / UPGRADE_MARK).write_text(to_json(mark))
    assert UpgradedTableReader(str(table.path), open_storage).timeline() == Timeline()
    with pytest.raises(HalfMovedError, match="run lake_upgrade if it died"):
        TableReader(str(table.path), open_storage).timeline()
    (table.path / UPGRADE_MARK).write_text("{}")
    with pytest.raises(DamagedFileError, match="not readable"):
        UpgradedTableReader(str(table.path), open_storage).timeline()


@pytest.mark.parametrize(
    ("word", "done", "outcome"),
    [
        pytest.param(Outcome.COMPLETED, (), Outcome.COMPLETED, id="a search"),
        pytest.param(Outcome.COMPLETED, (at(1),), Outcome.COMPLETED, id="a deletion"),
        pytest.param(Outcome.COMPLETED, (at(9),), Outcome.FAILED, id="not on the timeline"),
        pytest.param(Outcome.FAILED, (), Outcome.FAILED, id="a key is left"),
        pytest.param(None, (), Outcome.FAILED, id="died"),
    ],
)
def test_step_of_an_erasure_is_judged_by_its_report_and_the_timeline(
    word: Outcome | None, done: tuple[str, ...], outcome: Outcome
) -> None:
    result = None if word is None else ServiceResult(Service.TTL, word, completed_instants=done, message="why")
    verdict = judge(SAVED, SAVED, ServiceRequest(Service.TTL, Mode.ERASE), result)
    assert verdict.outcome is outcome
    assert "why" in verdict.reason or word is None or done == (at(9),)


def test_restore_goes_on_next_to_writes_that_it_has_half_taken_back(tmp_path: Path) -> None:
    table = HandMadeTable.create(tmp_path / "orders")
    table.commit(1)
    table.begin(at(3))
    reader = TableReader(str(table.path), open_storage)
    restore = ServiceRequest(Service.SAVEPOINT, Mode.RESTORE, (at(1),))
    with pytest.raises(WriterUnguardedError):
        reader.require_guarded_writers(restore)
    (table.path / ".hoodie/timeline" / f"{at(7)}.restore.inflight").touch()
    reader.require_guarded_writers(restore)
    with pytest.raises(WriterUnguardedError):
        reader.require_guarded_writers(ServiceRequest(Service.CLEAN, Mode.EXECUTE))
