"""Services that Hudi would fail each time are blocked with the reason, and not retried."""

from __future__ import annotations

from dataclasses import replace

import pytest

from airflow_lake_provider.hudi.properties import TimelineFiles
from airflow_lake_provider.job_contract import Mode, Service
from airflow_lake_provider.planner.rules import Decision, Verdict, block_stopped
from airflow_lake_provider.shared.actions import Action, State
from airflow_lake_provider.storage.store import FileEntry
from tests.unit.planner.views import pending, view

T = "20261121120005000"
DUE = (
    Decision(Service.COMPACTION, Verdict.DUE, "due"),
    Decision(Service.CLUSTERING, Verdict.DUE, "due"),
    Decision(Service.CLEAN, Verdict.DUE, "due"),
)


def entry(name: str, size_bytes: int = 0) -> FileEntry:
    return FileEntry(name, size_bytes, 0, is_folder=False)


@pytest.mark.parametrize(
    ("names", "blocked"),
    [
        pytest.param([f"{T}.compaction.requested"], {"compaction", "clustering", "clean"}, id="compaction-stops-all"),
        pytest.param([f"{T}.clustering.requested"], {"clustering"}, id="clustering-stops-itself"),
        pytest.param([f"{T}.deltacommit.requested"], set(), id="request-of-a-write"),
        pytest.param([f"{T}.compaction.requested", f"{T}_{T}.commit"], set(), id="completed"),
    ],
)
def test_empty_plan_blocks_what_would_read_it(names: list[str], blocked: set[str]) -> None:
    found = block_stopped(DUE, view(), TimelineFiles(tuple(entry(name) for name in names)))
    assert {decision.service for decision in found if decision.verdict is Verdict.BLOCKED} == blocked
    assert all(names[0] in decision.reason for decision in found if decision.service in blocked)


def test_lost_metadata_table_blocks_all_and_names_the_repair() -> None:
    found = block_stopped(DUE, view(), TimelineFiles(is_metadata_lost=True))
    assert {decision.verdict for decision in found} == {Verdict.BLOCKED}
    assert "lost_metadata_table" in found[0].reason


def test_withdrawal_is_the_way_out_and_not_blocked() -> None:
    withdrawal = replace(DUE[1], mode=Mode.WITHDRAW)
    files = TimelineFiles((entry(f"{T}.clustering.requested"),))
    assert block_stopped([withdrawal], view(), files) == (withdrawal,)


def test_nothing_begins_while_a_restore_is_pending() -> None:
    withdrawal = replace(DUE[1], mode=Mode.WITHDRAW)
    restore = pending(5, Action.RESTORE, State.INFLIGHT)
    restoring = view(plans=(restore,))
    found = block_stopped([*DUE, withdrawal], restoring, TimelineFiles())
    assert {decision.verdict for decision in found} == {Verdict.BLOCKED}
    assert f"the restore {restore.requested_time} is pending" in found[0].reason
