"""Clustering is held back after the manager withdrew its failed plan, longer each time, with the reason in words."""

from __future__ import annotations

from airflow_lake_provider.config.policies import TablePolicy
from airflow_lake_provider.job_contract import Service
from airflow_lake_provider.manager.scheduling.scheduling import (
    GIVEN_UP_PAUSE_MS,
    MAX_HELD_BACK_MS,
    StartVerdict,
    wait_after_failures,
)
from airflow_lake_provider.planner.last_runs import LastRun, RunEnd
from airflow_lake_provider.planner.rules import Decision, Verdict

PLAN, LATER = "20261121120005000", "20261121130005000"
ENDED_MS = 1_795_262_400_000
POLICY = TablePolicy()


def withdrew(failures: int) -> LastRun:
    return LastRun(
        1,
        "t.clustering.w",
        PLAN,
        "",
        "",
        "",
        end=RunEnd.SUCCESS,
        ended_ms=ENDED_MS,
        failures=failures,
        is_withdrawal=True,
    )


def due(last_clustering: str | None = None) -> Decision:
    evidence = {"last_clustering": last_clustering}
    return Decision(Service.CLUSTERING, Verdict.DUE, "many small files", evidence=evidence)


def test_clustering_waits_twice_as_long_after_each_failure_and_says_why() -> None:
    for failures, pause_ms in ((1, GIVEN_UP_PAUSE_MS), (2, 2 * GIVEN_UP_PAUSE_MS), (40, MAX_HELD_BACK_MS)):
        waits = wait_after_failures(due(), withdrew(failures), POLICY, ENDED_MS + pause_ms - 1)
        assert waits is not None
        assert waits.verdict is StartVerdict.ABANDONED  # people are notified of it
        assert (
            f"plan {PLAN} of clustering failed and was withdrawn, because it blocked writers; held back" in waits.reason
        )
        assert wait_after_failures(due(), withdrew(failures), POLICY, ENDED_MS + pause_ms) is None


def test_clustering_by_hand_that_completes_ends_the_wait() -> None:
    assert wait_after_failures(due(LATER), withdrew(1), POLICY, ENDED_MS) is None


def test_plan_that_gave_way_to_a_writer_holds_nothing_back() -> None:
    assert wait_after_failures(due(), withdrew(0), POLICY, ENDED_MS) is None
