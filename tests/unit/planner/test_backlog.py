from __future__ import annotations

from airflow_lake_provider.hudi.instant import Action
from airflow_lake_provider.planner.backlog import measure_compaction_backlog
from tests.unit.planner.views import at, base, commit, completed, log, view


def test_backlog_of_logs_above_sized_bases_counts_files_and_bytes() -> None:
    backlog = measure_compaction_backlog(
        view(
            (completed(1, Action.COMMIT), commit(base("a", 1000), base("b", 500), operation="BULK_INSERT")),
            (completed(3), commit(log("a", 100))),
            (completed(5), commit(log("a", 50), log("b", 25))),
        )
    )
    assert (backlog.delta_commits, backlog.log_files, backlog.log_bytes, backlog.base_bytes) == (2, 3, 175, 1500)
    assert backlog.newest_write == at(5)
    assert backlog.last_compaction is None


def test_backlog_after_a_compaction_keeps_only_what_completed_after_its_plan() -> None:
    """A delta commit that completes while the compaction runs goes to the next file slice: it still waits."""
    backlog = measure_compaction_backlog(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(3), commit(log("a", 100))),
            (completed(7, took_s=2), commit(log("a", 40))),
            (completed(6, Action.COMMIT, took_s=10), commit(base("a", 1100), operation="COMPACT")),
            (completed(20), commit(log("a", 60))),
        )
    )
    assert (backlog.delta_commits, backlog.log_files, backlog.log_bytes, backlog.base_bytes) == (2, 2, 100, 1100)
    assert backlog.last_compaction == at(6)


def test_backlog_of_a_slow_writer_requested_before_the_plan_counts_by_completion() -> None:
    backlog = measure_compaction_backlog(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(4, took_s=20), commit(log("a", 70))),
            (completed(6, Action.COMMIT, took_s=2), commit(base("a", 1000), operation="COMPACT")),
        )
    )
    assert (backlog.delta_commits, backlog.log_bytes) == (1, 70)


def test_backlog_of_file_groups_whose_base_was_archived_leaves_them_out_of_the_ratio() -> None:
    backlog = measure_compaction_backlog(view((completed(1), commit(log("old", 900), base("new", 100)))))
    assert (backlog.log_files, backlog.log_bytes, backlog.base_bytes, backlog.unsized_file_groups) == (1, 0, 100, 1)
    assert backlog.log_to_base_ratio == 0.0


def test_backlog_of_replaced_file_groups_forgets_them() -> None:
    backlog = measure_compaction_backlog(
        view(
            (completed(1), commit(base("a", 1000))),
            (completed(3), commit(log("a", 100))),
            (
                completed(5, Action.REPLACECOMMIT),
                commit(base("c", 900), operation="CLUSTER", replaced=(("p", "a"),)),
            ),
        )
    )
    assert (backlog.log_files, backlog.base_bytes) == (0, 900)


def test_backlog_of_an_empty_table_has_no_ratio() -> None:
    backlog = measure_compaction_backlog(view())
    assert backlog.log_to_base_ratio is None
    assert backlog.newest_write is None
