"""Which step of a restore comes next, and which files of a savepoint must be there after it."""

from __future__ import annotations

import pytest

from airflow_lake_provider.errors import ServiceRefusedError
from lake_jobs.replication.file_slices import parse_name
from lake_jobs.services.restore_rules import RestoreStep, decide_step, find_gone, slices_of

SAVED, FIRST, SECOND, NEW, RESTORE = (f"2026112112000{second}000" for second in (1, 2, 3, 4, 5))


def step(
    on_timeline: set[str],
    taken_back: set[str],
    pending: dict[str, str] | None = None,
    completed: tuple[str, ...] = (),
) -> RestoreStep:
    return decide_step(SAVED, {FIRST, SECOND}, {SAVED, *on_timeline}, taken_back, pending or {}, completed)


def test_restore_begins_with_what_the_check_named() -> None:
    assert step({FIRST, SECOND}, {FIRST, SECOND}) is RestoreStep.BEGIN
    # One of them was a plan that its owner has withdrawn meanwhile.
    assert step({FIRST}, {FIRST}) is RestoreStep.BEGIN


def test_restore_is_refused_for_a_write_that_no_person_has_seen() -> None:
    with pytest.raises(ServiceRefusedError, match=f"{NEW} began after the check"):
        step({FIRST, SECOND, NEW}, {FIRST, SECOND, NEW})
    with pytest.raises(ServiceRefusedError, match=NEW):
        step({NEW}, {NEW}, completed=(SAVED,))


def test_interrupted_restore_goes_on_only_to_its_own_savepoint() -> None:
    assert step({FIRST}, {FIRST}, {RESTORE: SAVED}) is RestoreStep.RESUME
    assert step(set(), set(), {RESTORE: SAVED}) is RestoreStep.RESUME
    with pytest.raises(ServiceRefusedError, match="is pending"):
        step({FIRST}, {FIRST}, {RESTORE: FIRST})


def test_completed_restore_takes_nothing_back_that_was_written_after_it() -> None:
    assert step(set(), set(), completed=(RESTORE,)) is RestoreStep.VERIFY
    assert step({"20261121120006000"}, {"20261121120006000"}, completed=(RESTORE,)) is RestoreStep.VERIFY


BASE = f"a_0-1-2_{SAVED}.parquet"
OWN_LOG = f".a_{SAVED}.log.1_0-1-2"
LATER_LOG = f".a_{FIRST}.log.1_0-1-2"


def test_files_of_the_savepoint_must_be_there_and_those_of_later_writes_need_not() -> None:
    saved = {BASE, OWN_LOG, LATER_LOG}
    assert find_gone(saved, {BASE, OWN_LOG}, SAVED) == ()
    assert find_gone(saved, {OWN_LOG, LATER_LOG}, SAVED) == (BASE,)


def test_slices_have_the_newest_base_file_and_the_log_files_up_to_the_savepoint() -> None:
    files = [file for name in (BASE, OWN_LOG, LATER_LOG) if (file := parse_name(name)) is not None]
    found = slices_of(files, SAVED, 9)["a"]
    assert (found.base is not None and found.base.name, [log.name for log in found.logs]) == (BASE, [OWN_LOG])
