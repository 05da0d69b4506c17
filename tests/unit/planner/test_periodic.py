"""When savepoints and the search for orphan files are due, and what old savepoints do to archiving."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC

import pytest

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.config.service_policies import (
    ArchivePolicy,
    CleanPolicy,
    IntegrityPolicy,
    OrphanPolicy,
    SavepointPolicy,
)
from airflow_lake_provider.hudi.instant import Instant
from airflow_lake_provider.instant_clock import DAY_MS, instant_time_ms
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.decide import decide, service_options
from airflow_lake_provider.planner.facts import TableFacts
from airflow_lake_provider.planner.last_runs import NO_LAST_RUNS, RunEnd
from airflow_lake_provider.planner.retention import decide_archive
from airflow_lake_provider.planner.rules import Decision, Verdict
from airflow_lake_provider.shared.actions import Action, State
from tests.unit.planner.views import NOW_MS, at, base, commit, completed, pending, view

LOCK = {"hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.FileSystemBasedLockProvider"}
EVERY_HOUR = TablePolicy(
    savepoint=SavepointPolicy(every_s=3600, keep=2), orphans=OrphanPolicy(enabled=True), hudi_options=LOCK
)


def table(writes: int, *others: Instant) -> TableFacts:
    made = [(completed(second, Action.COMMIT), commit(base(f"f{second}", 1))) for second in range(writes)]
    return TableFacts(view(*made, plans=others, table_type="COPY_ON_WRITE"))


def savepoint(second: int, made_second: int = 30) -> Instant:
    return Instant(at(second), Action.SAVEPOINT, State.COMPLETED, at(made_second), f"{at(second)}.savepoint")


def find(service: Service, facts: TableFacts, policy: TablePolicy = EVERY_HOUR, now_ms: int = NOW_MS) -> Decision:
    return next(found for found in decide(facts, policy, now_ms) if found.service is service)


def test_each_is_off_unless_asked_for() -> None:
    off = {
        Service.SAVEPOINT: "savepoint.every_s",
        Service.ORPHANS: "orphans.enabled",
        Service.INTEGRITY: "integrity.enabled",
    }
    for service, name in off.items():
        found = find(service, table(3), TablePolicy(hudi_options=LOCK))
        assert (found.verdict, name in found.reason) == (Verdict.NOT_DUE, True)


@pytest.mark.parametrize("service", [Service.SAVEPOINT, Service.ORPHANS])
def test_each_is_due_once_in_a_period_and_needs_a_lock(service: Service) -> None:
    policy = EVERY_HOUR.replace(orphans=OrphanPolicy(enabled=True, check_every_s=3600))
    due = find(service, table(3), policy)
    assert (due.verdict, due.mode) == (Verdict.DUE, Mode.EXECUTE)
    last_runs = NO_LAST_RUNS.started(due, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    now_ms = due.evaluate_again_ms or 0
    again = next(d for d in decide(table(9), policy, now_ms - 1, last_runs) if d.service is service)
    assert again.verdict is Verdict.NOT_DUE
    next_hour = next(d for d in decide(table(9), policy, now_ms, last_runs) if d.service is service)
    assert (next_hour.verdict, next_hour.key_instant != due.key_instant) == (Verdict.DUE, True)
    assert find(service, table(3), policy.replace(hudi_options={})).verdict is Verdict.BLOCKED


def test_nothing_new_and_nothing_to_expire_needs_no_run() -> None:
    assert find(Service.SAVEPOINT, table(3, savepoint(2))).verdict is Verdict.NOT_DUE
    assert find(Service.SAVEPOINT, table(4, savepoint(2))).verdict is Verdict.DUE
    assert find(Service.SAVEPOINT, table(0)).verdict is Verdict.NOT_DUE
    # More than two: the job finds out whose they are.
    many = table(3, savepoint(0), savepoint(1), savepoint(2))
    assert find(Service.SAVEPOINT, many).verdict is Verdict.DUE
    # A write behind a pending one gets none yet.
    assert find(Service.SAVEPOINT, table(3, savepoint(0), pending(1, Action.DELTACOMMIT))).verdict is Verdict.NOT_DUE


def test_old_savepoints_expire_without_a_new_write() -> None:
    two = table(3, savepoint(1, 31), savepoint(2, 32))
    policy = EVERY_HOUR.replace(savepoint=SavepointPolicy(every_s=3600, expire_after_s=7200))
    assert find(Service.SAVEPOINT, two, policy).verdict is Verdict.NOT_DUE
    assert find(Service.SAVEPOINT, two, policy, NOW_MS + 7_200_000).verdict is Verdict.DUE
    # The newest one stays however old it is, so that alone needs no run.
    assert find(Service.SAVEPOINT, table(3, savepoint(2)), policy, NOW_MS + 7_200_000).verdict is Verdict.NOT_DUE


def test_no_more_savepoints_means_that_those_of_the_service_go() -> None:
    policy = EVERY_HOUR.replace(savepoint=SavepointPolicy(every_s=3600, keep=0))
    assert find(Service.SAVEPOINT, table(3, savepoint(0)), policy).verdict is Verdict.DUE
    assert find(Service.SAVEPOINT, table(3), policy).verdict is Verdict.NOT_DUE


def test_run_by_hand_moves_nothing_without_the_owners_consent() -> None:
    quarantines = OrphanPolicy(mode="quarantine")
    off = service_options(Service.ORPHANS, TablePolicy(orphans=quarantines))
    assert off["lake.orphans.mode"] == "report"
    on = service_options(Service.ORPHANS, TablePolicy(orphans=quarantines.model_copy(update={"enabled": True})))
    assert (on["lake.orphans.mode"], on["lake.orphans.min_age_days"]) == ("quarantine", "7")
    assert service_options(Service.SAVEPOINT, TablePolicy()) == {}
    assert service_options(Service.SAVEPOINT, EVERY_HOUR) == {"lake.savepoint.keep": "2"}


def test_archive_names_an_old_savepoint_that_holds_it_back_and_what_to_do() -> None:
    policy = TablePolicy(
        clean=CleanPolicy(retained_commits=2), archive=ArchivePolicy(min_commits=3, max_commits=4), hudi_options=LOCK
    )
    held = table(9, savepoint(0))
    since_ms = instant_time_ms(at(0), UTC) or 0
    young = decide_archive(held, policy, since_ms + DAY_MS - 1)
    assert (young.verdict, "CALL delete_savepoint" in young.reason) == (Verdict.NOT_DUE, False)
    old = decide_archive(held, policy, since_ms + 40 * DAY_MS)
    assert f"the savepoint {at(0)} is 40 days old" in old.reason
    assert "CALL delete_savepoint" in old.reason
    # One that something else holds back more names that.
    behind = replace(held, view=table(9, pending(0, Action.DELTACOMMIT), savepoint(4)).view)
    assert "CALL" not in decide_archive(behind, policy, since_ms + 40 * DAY_MS).reason


def test_a_check_is_due_once_in_a_period_without_a_lock_and_carries_its_policy() -> None:
    rules = IntegrityPolicy(enabled=True, check_every_s=3600, keys="table", max_partitions=3, max_bytes=100)
    policy = TablePolicy(integrity=rules)
    due = find(Service.INTEGRITY, table(3), policy)
    assert (due.verdict, due.mode) == (Verdict.DUE, Mode.EXECUTE)
    assert due.options == {
        "lake.integrity.keys": "table",
        "lake.integrity.max_partitions": "3",
        "lake.integrity.max_bytes": "100",
    }
    assert service_options(Service.INTEGRITY, policy) == due.options
    last_runs = NO_LAST_RUNS.started(due, "run-1").ended("run-1", RunEnd.SUCCESS, NOW_MS)
    now_ms = due.evaluate_again_ms or 0
    for at_ms, verdict in ((now_ms - 1, Verdict.NOT_DUE), (now_ms, Verdict.DUE)):
        found = decide(table(9), policy, at_ms, last_runs)
        assert next(each for each in found if each.service is Service.INTEGRITY).verdict is verdict
    assert find(Service.INTEGRITY, table(0), policy).verdict is Verdict.NOT_DUE
